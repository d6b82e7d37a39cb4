// The lines by which two texts differ, with a few lines around each change.

export interface Line {
  readonly sign: "+" | "−" | " " | "…";
  readonly text: string;
}

// Above this product of line counts the texts are shown as removed and added as a whole.
const CELLS_MAX = 4_000_000;
const AROUND = 2;

export function linesOf(before: string, after: string): Line[] {
  const old = before === "" ? [] : before.split("\n");
  const now = after === "" ? [] : after.split("\n");
  const all = old.length * now.length > CELLS_MAX ? [...signed("−", old), ...signed("+", now)] : aligned(old, now);
  const isNear = all.map((_, i) => all.slice(Math.max(0, i - AROUND), i + AROUND + 1).some(({ sign }) => sign !== " "));
  return all.flatMap((line, i): Line[] => (isNear[i] ? [line] : isNear[i - 1] ? [{ sign: "…", text: "" }] : []));
}

const signed = (sign: Line["sign"], lines: readonly string[]): Line[] => lines.map((text) => ({ sign, text }));

// aligned keeps the longest common subsequence of the lines.
function aligned(old: readonly string[], now: readonly string[]): Line[] {
  const width = now.length + 1;
  const common = new Uint32Array((old.length + 1) * width);
  const at = (i: number, j: number) => common[i * width + j] ?? 0;
  for (let i = old.length - 1; i >= 0; i--) {
    for (let j = now.length - 1; j >= 0; j--) {
      common[i * width + j] = old[i] === now[j] ? at(i + 1, j + 1) + 1 : Math.max(at(i + 1, j), at(i, j + 1));
    }
  }
  const lines: Line[] = [];
  let [i, j] = [0, 0];
  while (i < old.length || j < now.length) {
    if (i < old.length && j < now.length && old[i] === now[j]) {
      lines.push({ sign: " ", text: old[i++] ?? "" });
      j++;
    } else if (j >= now.length || (i < old.length && at(i + 1, j) >= at(i, j + 1))) lines.push({ sign: "−", text: old[i++] ?? "" });
    else lines.push({ sign: "+", text: now[j++] ?? "" });
  }
  return lines;
}
