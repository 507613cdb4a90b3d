/** Numbers of unknown count, kept in a typed array that doubles. */
export class Growing {
  #data = new Float64Array(64);
  #length = 0;

  get length(): number {
    return this.#length;
  }

  push(value: number): void {
    if (this.#length === this.#data.length) {
      const wider = new Float64Array(2 * this.#length);
      wider.set(this.#data);
      this.#data = wider;
    }
    this.#data[this.#length++] = value;
  }

  f64(): Float64Array {
    return this.#data.slice(0, this.#length);
  }

  u32(): Uint32Array {
    return Uint32Array.from(this.#data.subarray(0, this.#length));
  }

  u8(): Uint8Array {
    return Uint8Array.from(this.#data.subarray(0, this.#length));
  }

  values(): number[] {
    return Array.from(this.#data.subarray(0, this.#length));
  }
}
