/** Ranks and steps as people write them: `0–3, 6, 8–9`. */
export function formatRanks(ranks: readonly number[], limit = 12): string {
  const parts: string[] = [];
  let first: number | null = null;
  let last = 0;
  const close = (): void => {
    if (first !== null) parts.push(first === last ? String(first) : last === first + 1 ? `${first}, ${last}` : `${first}–${last}`);
  };
  for (const rank of [...new Set(ranks)].sort((a, b) => a - b)) {
    if (first !== null && rank === last + 1) last = rank;
    else {
      close();
      first = last = rank;
    }
  }
  close();
  return parts.length <= limit ? parts.join(", ") : `${parts.slice(0, limit).join(", ")}, … (${ranks.length} in all)`;
}

/** "1 rank", "8 ranks", "1,024 ranks". */
export function counted(count: number, noun: string, plural = `${noun}s`): string {
  return `${count.toLocaleString("en-US")} ${count === 1 ? noun : plural}`;
}
