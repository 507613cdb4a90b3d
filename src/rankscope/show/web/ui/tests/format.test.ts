import { describe, expect, test } from "vitest";
import { counted, formatRanks } from "../src/format/ranks.ts";
import { columnLabel, elide, shownName, titleName, visible } from "../src/format/text.ts";
import { exactCell, formatBytes, formatCell, formatDuration, formatMoment, formatRatio, formatTick, grouped, significant } from "../src/format/units.ts";

const plain = (text: string): string => text.replaceAll("\u00a0", " ");

describe("durations", () => {
  test.each([
    [0, "0"], [1, "1 ns"], [999, "999 ns"], [1000, "1.000 µs"], [1234, "1.234 µs"], [12_345, "12.35 µs"], [999_949, "999.9 µs"], [999_960, "1.000 ms"], [9_999_600, "10.00 ms"],
    [36_212_345, "36.21 ms"], [1_000_000_000, "1.000 s"], [3_296_150_000, "3.296 s"], [-44_500, "−44.50 µs"], [36_000_000_000_000, "36,000 s"], [0.5, "0.5000 ns"],
  ])("%d ns", (ns, text) => expect(plain(formatDuration(ns))).toBe(text));
  test("moments keep their microseconds", () => {
    expect(plain(formatMoment(1_234_567_890))).toBe("1,234.568 ms");
    expect(plain(formatMoment(-1500))).toBe("−0.002 ms");
    expect(plain(formatMoment(999_999_999))).toBe("1,000.000 ms");
    expect(plain(formatCell(37_500_000, "ns", true))).toBe("37.500 ms");
  });
  test("ticks lose their zeros, and nothing else", () => {
    expect(plain(formatTick(60_000_000, formatDuration))).toBe("60 ms");
    expect(plain(formatTick(1_500_000, formatDuration))).toBe("1.5 ms");
    expect(plain(formatTick(100_000_000, formatDuration))).toBe("100 ms");
    expect(formatTick(0, formatDuration)).toBe("0");
    expect(plain(formatTick(1000, (value) => `${grouped(value)} B`))).toBe("1,000 B");
  });
});

test("sizes, shares, counts, rates", () => {
  expect(plain(formatBytes(512))).toBe("512 B");
  expect(plain(formatBytes(17_632_384))).toBe("17.63 MB");
  expect(plain(formatRatio(0.1596))).toBe("16.0 %");
  expect(plain(formatRatio(0.0042))).toBe("0.42 %");
  expect(plain(formatRatio(0))).toBe("0.0 %");
  expect(plain(formatRatio(0.00002))).toBe("< 0.01 %");
  expect(plain(formatRatio(-0.25))).toBe("−25.0 %");
  expect(formatCell(8_816_192, "count")).toBe("8,816,192");
  expect(formatCell(1024, "")).toBe("1024");
  expect(formatCell(1024, "ranks")).toBe("1,024");
  expect(plain(formatCell(12.5, "%"))).toBe("12.50 %");
  expect(plain(formatCell(412.345, "GB/s"))).toBe("412.3 GB/s");
  expect(plain(formatCell(12, "us"))).toBe("12.00 µs");
  expect(significant(1234.5)).toBe("1,235");
});

test("what is not known is a dash, never a zero", () => {
  expect(formatCell(null, "ns")).toBe("–");
  expect(exactCell(null, "ns")).toBeNull();
  expect(exactCell(36_212_345, "ns")).toBe("36,212,345 ns");
});

test("nouns follow their count", () => {
  expect([0, 1, 2, 12_000].map((count) => counted(count, "call"))).toEqual(["0 calls", "1 call", "2 calls", "12,000 calls"]);
});

test("ranks are written as ranges", () => {
  expect(formatRanks([0, 1, 2, 3, 6, 8, 9])).toBe("0–3, 6, 8, 9");
  expect(formatRanks([3, 1, 2, 1])).toBe("1–3");
  expect(formatRanks([])).toBe("");
  expect(formatRanks([0, 2, 4, 6], 2)).toBe("0, 2, … (4 in all)");
  expect(formatCell([0, 1, 2], "")).toBe("0–2");
});

describe("names from other people's files", () => {
  test("what hides or turns text is made visible", () => {
    expect(visible("a\u202eb\u001b[31m")).toBe("a\\u202eb\\u001b[31m");
    expect(visible("שלום")).toBe("שלום");
  });
  test("long names keep head and tail and stay bounded", () => {
    const long = `head_${"x".repeat(10_000)}_tail`;
    expect(shownName(long).length).toBeLessThanOrEqual(160);
    expect(shownName(long)).toMatch(/^head_x+…x+_tail$/);
    expect(titleName(long).length).toBeLessThan(2100);
    expect(titleName(long)).toContain("10010 characters");
  });
  test("no half of a pair is left", () => {
    const text = "😀".repeat(200);
    expect(() => encodeURIComponent(elide(text, 51))).not.toThrow(); // throws on half a pair
    expect(elide("short")).toBe("short");
  });
  test("columns as words", () => {
    expect(columnLabel("exposed_communication_ns")).toBe("Exposed communication");
    expect(columnLabel("_ns")).toBe("_ns");
    expect(["mfu", "tflops_per_s", "peak_tflops", "blocks_per_sm", "run_id"].map(columnLabel)).toEqual(["MFU", "TFLOP/s", "Peak TFLOP/s", "Blocks per SM", "Run ID"]);
  });
});
