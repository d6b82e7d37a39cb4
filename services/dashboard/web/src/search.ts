// A search finds a patient if every word of it is in the name or an identifier, regardless of case
// and accents.

export function folded(text: string): string {
  return text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();
}

export function finds(search: string, ...texts: readonly string[]): boolean {
  return rank(search, ...texts) > 0;
}

// rank is how well the texts match. At 4 one text is the search, and at 3 one text begins with it.
// At 2 each word begins a word of the texts, and at 1 it is somewhere in them. At 0 none matches.
export function rank(search: string, ...texts: readonly string[]): 0 | 1 | 2 | 3 | 4 {
  const wanted = folded(search).trim();
  if (wanted === "") return 1;
  const known = texts.map(folded);
  if (known.includes(wanted)) return 4;
  const all = known.join(" ");
  const words = wanted.split(/\s+/);
  if (!words.every((word) => all.includes(word))) return 0;
  if (known.some((text) => text.startsWith(wanted))) return 3;
  const own = all.split(/[\s_-]+/);
  return words.every((word) => own.some((text) => text.startsWith(word))) ? 2 : 1;
}
