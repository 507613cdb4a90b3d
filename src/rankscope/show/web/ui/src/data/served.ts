/** A run that `rankscope serve` serves: its facts at once, its tables on request, its progress until it is ready. */
import { ApiError, ServerApi, type Api, type RunChoice, type ServerState } from "./api.ts";
import { SCHEMA_VERSION, type AnalysisPayload, type Finding, type Payload } from "./payload.ts";
import type { Source } from "./source.ts";
import { PayloadError, readAnalysis, readDiagnosis, readFinding, readHeadline, readRun } from "./validate.ts";

const POLL_MS = 400;
const SLOW_POLL_MS = 2000;

interface Summary {
  readonly schema_version?: unknown;
  readonly generated_by?: unknown;
  readonly run?: unknown;
  readonly findings?: unknown;
  readonly diagnosis?: unknown;
  readonly analyses?: Readonly<Record<string, { title?: unknown; doc?: unknown; headline?: unknown; columns?: unknown; rows?: unknown; state?: unknown }>>;
}

export class ServedRun implements Source {
  readonly api: Api;
  readonly live = true;
  readonly leftOut: readonly string[] = [];
  runs: readonly RunChoice[] = [];
  /** The key of the run that is served where the address names none. */
  shown = "";
  place = "";
  study = false;
  state: ServerState = { phase: "reading", what: "", done: 0, total: 0, ready: [], error: null, version: -1 };
  payload: Payload;
  generation = 0;
  readonly #analyses = new Map<string, AnalysisPayload>();
  readonly #asked = new Map<string, Promise<void>>();
  readonly #tell = new Set<() => void>();
  #summarized = -1;

  constructor(run: string | null) {
    this.api = new ServerApi(run);
    this.payload = { generatedBy: "rankscope", generatedAt: "", run: readRun({}), analyses: this.#analyses, findings: [], diagnosis: null, problems: [] };
  }

  /** Calls back when the server has news; returns a function that stops it. */
  onChange(tell: () => void): () => void {
    this.#tell.add(tell);
    return () => this.#tell.delete(tell);
  }

  get working(): boolean {
    return this.state.phase !== "ready" && this.state.phase !== "failed";
  }

  isReady(what: string): boolean {
    return this.state.ready.includes(what);
  }

  async load(): Promise<void> {
    await this.#list();
    const { runs, shown } = this;
    if (this.api.run !== null && runs.length > 0 && !runs.some(({ key }) => key === this.api.run)) {
      const error = { what: "The run in the link is not in this directory.", hint: "Choose another run above, or remove `run` from the link." };
      this.state = { ...this.state, phase: "failed", error };
      return;
    }
    if (runs.length > 1 && this.api.run === null && !shown) return;
    await this.#look();
    void this.#poll();
  }

  /** Brings an analysis' rows here; a second call waits for the first. */
  table(name: string): Promise<void> {
    const before = this.#asked.get(name);
    if (before) return before;
    const asked = this.api.json<unknown>("table/" + encodeURIComponent(name)).then((raw) => {
      const analysis = readAnalysis(name, raw);
      if (typeof analysis === "string") throw new PayloadError(`The table ${name} cannot be shown: ${analysis}.`, "The page and the server may come from different versions of rankscope: reload the page.");
      this.#analyses.set(name, analysis);
    }).finally(() => this.#asked.delete(name));
    this.#asked.set(name, asked);
    return asked;
  }

  async #poll(): Promise<void> {
    for (;;) {
      await new Promise((later) => setTimeout(later, this.working && !document.hidden ? POLL_MS : SLOW_POLL_MS));
      if (!this.working && !this.state.following) return;
      try {
        await this.#look();
      } catch (error) {
        const [what, hint] = error instanceof ApiError ? [error.message, error.hint] : ["The server’s response cannot be read.", "Reload the page."];
        this.state = { ...this.state, what: `${what} ${hint}` };
        // A link made before the server started may name a run that only now is known not to be there: then the others are offered.
        const gone = error instanceof ApiError && error.status === 404;
        if (gone) await this.#list().catch(() => undefined);
        if (gone || (error instanceof ApiError && (error.status === 401 || error.status === 403))) this.state = { ...this.state, phase: "failed", error: { what, hint } };
        for (const tell of this.#tell) tell();
      }
    }
  }

  async #list(): Promise<void> {
    const { runs, shown, place, study } = await this.api.json<{ runs: RunChoice[]; shown: string; place: string; study: boolean }>("runs");
    if (shown !== this.shown) this.#summarized = -1; // what a link's key stood for while nothing was known was another run
    [this.runs, this.shown, this.place, this.study] = [runs, shown, place, study];
  }

  async #look(): Promise<void> {
    const state = await this.api.json<ServerState>("state");
    const renewed = (state.generation ?? 0) !== this.generation && state.phase === "ready";
    const news = renewed || state.version !== this.state.version || state.phase !== this.state.phase || state.done !== this.state.done || state.what !== this.state.what;
    // The other runs of a directory are only known once the first has been read: requested after the state, so that its run is in the list.
    if (state.version !== this.state.version || state.phase !== this.state.phase) await this.#list();
    this.state = state;
    if (state.version !== this.#summarized && state.phase !== "failed") {
      try {
        this.#take(await this.api.json<Summary>("summary"));
        this.#summarized = state.version;
        if (renewed) await this.#renew();
      } catch (error) {
        // While the first files are read there may be no summary yet.
        if (!(error instanceof ApiError) || !this.working || error.status === 0 || error.status === 401 || error.status === 403) throw error;
      }
    }
    if (renewed) this.generation = state.generation ?? 0;
    if (news) for (const tell of this.#tell) tell();
  }

  /** Fetches again what belonged to earlier files; it stays visible until then. */
  async #renew(): Promise<void> {
    const { analyses } = this.payload;
    await Promise.all([...analyses].filter(([, analysis]) => !analysis.away).map(([name]) => this.table(name).catch(() => undefined)));
  }

  #take(summary: Summary): void {
    if (summary.schema_version !== SCHEMA_VERSION) {
      throw new PayloadError(`This page reads schema version ${SCHEMA_VERSION}, but the server sent ${String(summary.schema_version).slice(0, 20)}.`, "The page and the server come from different versions of rankscope: reload the page without the browser’s cache.");
    }
    for (const [name, raw] of Object.entries(summary.analyses ?? {})) {
      const state = raw.state === "ready" || raw.state === "failed" ? raw.state : "pending";
      const kept = this.#analyses.get(name);
      if (kept && !kept.away) { // rows do not change once they are there; the diagnosis may judge what they say
        this.#analyses.set(name, { ...kept, headline: readHeadline(raw.headline) });
        continue;
      }
      this.#analyses.set(name, {
        title: typeof raw.title === "string" && raw.title !== "" ? raw.title : name, doc: typeof raw.doc === "string" ? raw.doc : "", headline: readHeadline(raw.headline),
        columns: (raw.columns ?? {}) as AnalysisPayload["columns"], data: {}, truncated: null, away: { rows: Number(raw.rows ?? 0), state },
      });
    }
    this.payload = {
      ...this.payload, generatedBy: typeof summary.generated_by === "string" ? summary.generated_by : "rankscope", run: readRun(summary.run),
      findings: (Array.isArray(summary.findings) ? summary.findings : []).map(readFinding).filter((finding): finding is Finding => finding !== null),
      diagnosis: readDiagnosis(summary.diagnosis),
    };
  }
}
