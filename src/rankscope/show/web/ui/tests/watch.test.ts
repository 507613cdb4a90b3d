import { describe, expect, it } from "vitest";
import { cutOff } from "../src/views/watch.ts";

describe("the vertical axis of the step times", () => {
  const steady = Array.from({ length: 100 }, (_, step): [number, number] => [step, 1000 + (step % 7)]);
  it("shows all where no step stands out", () => {
    expect(cutOff({ "rank 0": steady })).toBeNull();
    expect(cutOff({ "rank 0": [...steady, [100, 4900]] })).toBeNull();
    expect(cutOff({})).toBeNull();
  });
  it("is cut off above the usual steps where one would flatten the others", () => {
    const limit = cutOff({ "rank 0": [...steady, [100, 60_000]], "rank 1": steady });
    expect(limit).toBeGreaterThan(2000);
    expect(limit).toBeLessThan(2020);
  });
});
