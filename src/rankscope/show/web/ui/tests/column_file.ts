/** Writes column files as the server does: for tests. */
type Values = Uint8Array | Uint32Array | Float64Array;

export function columnFile(meta: Record<string, unknown>, columns: Record<string, Values>): ArrayBuffer {
  const about: Record<string, unknown> = {};
  let size = 0;
  for (const [name, values] of Object.entries(columns)) {
    about[name] = { type: values instanceof Uint8Array ? "u8" : values instanceof Uint32Array ? "u32" : "f64", offset: size, length: values.length };
    size += Math.ceil(values.byteLength / 8) * 8;
  }
  let text = JSON.stringify({ ...meta, columns: about });
  const bytes = new TextEncoder().encode(text).length;
  text += " ".repeat((8 - ((8 + bytes) % 8)) % 8);
  const head = new TextEncoder().encode(text);
  const file = new Uint8Array(8 + head.length + size);
  file.set(new TextEncoder().encode("RSC1"));
  new DataView(file.buffer).setUint32(4, head.length, true);
  file.set(head, 8);
  let at = 8 + head.length;
  for (const values of Object.values(columns)) {
    file.set(new Uint8Array(values.buffer, values.byteOffset, values.byteLength), at);
    at += Math.ceil(values.byteLength / 8) * 8;
  }
  return file.buffer;
}
