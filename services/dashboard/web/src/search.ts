// A search finds a patient if every word of it is in the name or id, regardless of case and
// accents.

export function folded(text: string): string {
  return text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();
}

export function finds(search: string, ...texts: readonly string[]): boolean {
  if (search === "") return true;
  const text = folded(texts.join(" "));
  return folded(search).split(/\s+/).every((word) => text.includes(word));
}
