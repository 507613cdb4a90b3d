/** The current place is in the URL's hash (`#/steps?rank=3`), so that it can be shared and Back works. */
export interface Place {
  readonly view: string;
  readonly params: ReadonlyMap<string, string>;
}

export function parseHash(hash: string): Place {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  return { view: decoded(path), params: new Map(new URLSearchParams(query)) };
}

export function formatHash(view: string, params: ReadonlyMap<string, string>): string {
  const query = new URLSearchParams([...params].filter(([, value]) => value !== "")).toString();
  return `#/${encodeURIComponent(view)}${query ? `?${query}` : ""}`;
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return "";
  }
}

export class Router {
  readonly #go: (place: Place) => void;
  #run: string | null = null;
  /** The address as it was last followed, or written by this page. */
  #known = location.hash;

  constructor(go: (place: Place) => void) {
    this.#go = go;
    addEventListener("hashchange", () => {
      this.#go(this.place());
      this.#known = location.hash;
    });
  }

  /** Whether a link is being followed: the address is that of the next view already. */
  get leaving(): boolean {
    return location.hash !== this.#known;
  }

  place(): Place {
    return parseHash(location.hash);
  }

  /** Every link names its run: it stays valid when runs are added. */
  href(view: string, params: Readonly<Record<string, string | number>> = {}): string {
    const run = this.place().params.get("run") ?? this.#run;
    return formatHash(view, new Map([...(run === null ? [] : [["run", run] as [string, string]]), ...Object.entries(params).map(([key, value]): [string, string] => [key, String(value)])]));
  }

  /** From now on the address and every link name their view and run; null: none. */
  stay(view: string, run: string | null): void {
    const place = this.place();
    this.#run = run;
    if (run === null || (place.view !== "" && place.params.has("run"))) return;
    this.#replace(formatHash(place.view || view, new Map([...place.params, ["run", run]])));
  }

  /** A step that Back undoes, for a view that moves itself: nothing is redrawn. */
  push(changes: Readonly<Record<string, string>>): void {
    const hash = this.#changed(changes);
    if (hash === location.hash) return;
    try {
      history.pushState(null, "", hash);
      this.#known = location.hash;
    } catch {
      this.note(changes);
    }
  }

  /** A step that Back undoes; the view is redrawn. */
  update(changes: Readonly<Record<string, string>>): void {
    location.hash = this.#changed(changes);
  }

  /** Keeps the URL true to small changes (a filter's text, an order) without a new history entry or a new drawing. */
  note(changes: Readonly<Record<string, string>>): void {
    this.#replace(this.#changed(changes));
  }

  #replace(hash: string): void {
    try {
      history.replaceState(null, "", hash);
      this.#known = location.hash;
    } catch {
      // Some browsers forbid this for local files; the page works, only the link lags behind.
    }
  }

  #changed(changes: Readonly<Record<string, string>>): string {
    const { view, params } = this.place();
    return formatHash(view, new Map([...params, ...Object.entries(changes)]));
  }
}
