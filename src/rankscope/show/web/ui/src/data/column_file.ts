/** The server's binary tables (PROTOCOL.md, "Column file"): a header in JSON, then little-endian columns, read in place. */
export type Column = Uint8Array | Uint16Array | Uint32Array | Int32Array | Float64Array;

const MAGIC = 0x31435352; // "RSC1", read as little-endian
const TYPES = { u8: Uint8Array, u16: Uint16Array, u32: Uint32Array, i32: Int32Array, f64: Float64Array } as const;

export interface Made { readonly meta: Readonly<Record<string, unknown>>; readonly columns: Readonly<Record<string, Column>> }

export class ColumnFileError extends Error {}

export class ColumnFile {
  readonly meta: Readonly<Record<string, unknown>>;
  readonly bytes: number;
  readonly #columns: ReadonlyMap<string, Column>;

  /** @param source - the bytes of a file, or columns that were made here. */
  constructor(source: ArrayBuffer | Made) {
    if (!(source instanceof ArrayBuffer)) {
      this.meta = source.meta;
      this.#columns = new Map(Object.entries(source.columns));
      this.bytes = Object.values(source.columns).reduce((sum, column) => sum + column.byteLength, 0);
      return;
    }
    const buffer = source;
    this.bytes = buffer.byteLength;
    const view = new DataView(buffer);
    if (buffer.byteLength < 8 || view.getUint32(0, true) !== MAGIC) throw new ColumnFileError("it does not begin with RSC1");
    const length = view.getUint32(4, true);
    const base = 8 + length;
    if (base > buffer.byteLength || base % 8 !== 0) throw new ColumnFileError("its header is longer than the file");
    const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length))) as Record<string, unknown>;
    const columns = new Map<string, Column>();
    for (const [name, about] of Object.entries((header["columns"] ?? {}) as Record<string, { type: string; offset: number; length: number }>)) {
      const type = Object.hasOwn(TYPES, about.type) ? TYPES[about.type as keyof typeof TYPES] : undefined;
      if (!type) throw new ColumnFileError(`column ${name} has the unknown type ${about.type}`);
      const from = base + about.offset;
      if (!(about.offset >= 0) || about.offset % 8 !== 0 || !(about.length >= 0) || from + about.length * type.BYTES_PER_ELEMENT > buffer.byteLength) {
        throw new ColumnFileError(`column ${name} is out of bounds`);
      }
      columns.set(name, new type(buffer, from, about.length));
    }
    this.meta = header;
    this.#columns = columns;
  }

  u8(name: string): Uint8Array { return this.#of(name, Uint8Array); }
  u32(name: string): Uint32Array { return this.#of(name, Uint32Array); }
  i32(name: string): Int32Array { return this.#of(name, Int32Array); }
  f64(name: string): Float64Array { return this.#of(name, Float64Array); }

  #of<T extends Column>(name: string, type: new (length: number) => T): T {
    const column = this.#columns.get(name);
    if (!(column instanceof type)) throw new ColumnFileError(`it has no column ${name} of type ${type.name}`);
    return column;
  }
}
