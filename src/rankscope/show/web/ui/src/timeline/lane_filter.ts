/** Which ranks and tracks the reader's filter leaves: all of its words, or a regular expression between slashes. */
import { expression, slashed } from "../format/pattern.ts";
import type { RankRow, Track } from "./layout.ts";

export interface LaneFilter {
  rank(rank: RankRow): boolean;
  track(rank: RankRow, track: Track): boolean;
}

export function laneFilter(text: string): LaneFilter {
  const source = slashed(text);
  const pattern = source === null ? null : expression(source);
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const matches = source === null ? (name: string): boolean => contains(name.toLowerCase(), words) : (name: string): boolean => pattern?.test(name) ?? false;
  return { rank: (rank) => matches(rankText(rank)) || (pattern?.test(`rank ${rank.rank}`) ?? false), track: (rank, track) => matches(`${rankText(rank)} ${track.title} ${track.kind}`) };
}

function rankText({ rank, host, device, mesh }: RankRow): string {
  return `rank ${rank} ${host} ${device} ${mesh}`;
}

/** A number is a whole word: 3 is not 13. */
function contains(text: string, words: readonly string[]): boolean {
  const parts = text.split(/\s+/);
  return words.every((word) => (/^\d+$/.test(word) ? parts.includes(word) : text.includes(word)));
}
