/** All details of an event, as `api/event` sends them. */
export interface EventPlace {
  readonly lane: number;
  readonly row: number;
  readonly name: string;
  readonly start_ns: number;
  readonly end_ns: number;
}

export interface Member {
  readonly rank: number;
  readonly lane: number;
  readonly row: number;
  readonly start_ns: number;
  readonly end_ns: number;
  readonly wait_ns: number | null;
}

export interface EventDetail extends EventPlace {
  readonly rank: number;
  readonly category: string;
  readonly step: number | null;
  readonly args: Readonly<Record<string, unknown>>;
  readonly shapes: string | null;
  readonly stack: readonly string[];
  /** Why arguments and stack are not all there, where that is so. */
  readonly note?: string;
  readonly launch: EventPlace | null;
  readonly operator: EventPlace | null;
  /** By autograd's sequence number. */
  readonly forward: EventPlace | null;
  readonly backward: EventPlace | null;
  /** What an event of the host launched. */
  readonly kernels: { readonly count: number; readonly total_ns: number; readonly first: readonly EventPlace[] } | null;
  readonly collective: {
    readonly name: string;
    readonly group: string | null;
    readonly sequence: number | null;
    readonly bytes: number | null;
    readonly members: readonly Member[];
  } | null;
  readonly statistics: {
    readonly count: number;
    readonly total_ns: number;
    readonly mean_ns: number;
    readonly min_ns: number;
    readonly max_ns: number;
    readonly steps: readonly { readonly step: number | null; readonly count: number; readonly total_ns: number }[];
    readonly ranks: readonly { readonly rank: number; readonly count: number; readonly total_ns: number }[];
  } | null;
}
