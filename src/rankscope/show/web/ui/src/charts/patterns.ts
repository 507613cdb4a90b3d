/** The category patterns as ECharts decals; the legend draws the same ones in CSS (charts.css). */
import { color } from "../theme/theme.ts";
import type { Pattern } from "../theme/categories.ts";

interface Decal {
  color: string;
  symbol?: string;
  symbolSize?: number;
  dashArrayX: number | number[] | number[][];
  dashArrayY: number | number[];
  rotation?: number;
}

export function decal(pattern: Pattern): Decal | undefined {
  const ink = color("--hatch");
  switch (pattern) {
    case "none": return undefined;
    case "rising": return { color: ink, dashArrayX: [1, 0], dashArrayY: [2, 5], rotation: -Math.PI / 4 };
    case "falling": return { color: ink, dashArrayX: [1, 0], dashArrayY: [2, 5], rotation: Math.PI / 4 };
    case "level": return { color: ink, dashArrayX: [1, 0], dashArrayY: [2, 4], rotation: 0 };
    case "upright": return { color: ink, dashArrayX: [1, 0], dashArrayY: [2, 4], rotation: Math.PI / 2 };
    case "dots": return { color: ink, symbol: "circle", symbolSize: 0.8, dashArrayX: [[6, 6], [0, 6, 6, 0]], dashArrayY: [6, 0] };
    case "grid": return { color: ink, symbol: "rect", symbolSize: 1, dashArrayX: [[4, 4], [0, 4, 4, 0]], dashArrayY: [4, 0] };
  }
}
