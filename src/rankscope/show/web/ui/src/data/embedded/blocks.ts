/** The blocks of bytes in a report (PROTOCOL.md, "The report's file"): base64, deflated, then JSON or columns of numbers. */
import { ColumnFile } from "../column_file.ts";
import { PayloadError } from "../validate.ts";

export class Blocks {
  readonly #text: (name: string) => string | null;

  /** @param text - the base64 of a block, or null if there is none of that name. */
  constructor(text: (name: string) => string | null) {
    this.#text = text;
  }

  has(name: string): boolean {
    return this.#text(name) !== null;
  }

  async json<T>(name: string): Promise<T> {
    return JSON.parse(new TextDecoder().decode(await this.#bytes(name))) as T;
  }

  /** The columns of a block; without any where it is not there. */
  async numbers(name: string): Promise<Numbers> {
    return new Numbers(this.has(name) ? new ColumnFile(await this.#bytes(name)) : null);
  }

  async #bytes(name: string): Promise<ArrayBuffer> {
    try {
      const letters = atob((this.#text(name) ?? "").trim());
      const bytes = new Uint8Array(letters.length); // letter by letter: an iterator takes ten times as long
      for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
      return await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"))).arrayBuffer();
    } catch (error) {
      throw new PayloadError(`A part of this report cannot be read (${name}: ${error instanceof Error ? error.message.slice(0, 100) : "unknown reason"}).`,
        "The file may have been truncated during a copy, or the browser is older than 2023. Regenerate the report with `rankscope report DIR -o report.html`.");
    }
  }
}

/** The blocks of a page. */
export function pageBlocks(page: Document): Blocks {
  const elements = new Map<string, Element>();
  for (const element of page.querySelectorAll("script[data-rankscope]")) elements.set(element.getAttribute("data-rankscope") ?? "", element);
  return new Blocks((name) => elements.get(name)?.textContent ?? null);
}

/** Columns of whole numbers, each in byte planes: the lowest byte of every number, then the next of every number. */
export class Numbers {
  readonly #file: ColumnFile | null;
  readonly #lengths: Readonly<Record<string, number>>;

  constructor(file: ColumnFile | null) {
    this.#file = file;
    this.#lengths = (file?.meta["lengths"] ?? {}) as Record<string, number>;
  }

  get meta(): Readonly<Record<string, unknown>> {
    return this.#file?.meta ?? {};
  }

  has(name: string): boolean {
    return Object.hasOwn(this.#lengths, name);
  }

  of(name: string): Float64Array {
    const length = this.#lengths[name] ?? 0;
    const found = new Float64Array(length);
    if (!this.#file || length === 0) return found;
    const data = this.#file.u8(name);
    let unit = 1;
    for (let at = 0; at < data.length; at += length, unit *= 256) for (let i = 0; i < length; i++) found[i]! += data[at + i]! * unit;
    return found;
  }

  /** Numbers of which the differences were written, folded: 0, −1, 1, −2 … as 0, 1, 2, 3 … */
  steps(name: string): Float64Array {
    const found = this.of(name);
    let last = 0;
    for (let i = 0; i < found.length; i++) found[i] = last += unfolded(found[i]!);
    return found;
  }
}

export function unfolded(value: number): number {
  return value % 2 === 1 ? -(value + 1) / 2 : value / 2;
}
