interface Analysis {
  data: Record<string, (string | number | null)[]>;
}
interface Run {
  schema_version: number;
  analyses: Record<string, Analysis>;
}
export function makeRun(about: { ranks: number; steps?: number; seed?: number; late?: number; each?: number; most?: number }): Run & { analyses: { device_time: Analysis } };
export function hostileRun(): Run;
export function bareRun(): Run;
export function cpuRun(): Run;
export function fold(html: string, payload: unknown): string;
