// A search finds a patient if every word of it is in the name or id, regardless of case and
// accents.

function fold(text: string): string {
  return text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();
}

export function finds(search: string, ...texts: readonly string[]): boolean {
  if (search === "") return true;
  const text = fold(texts.join(" "));
  return fold(search).split(/\s+/).every((word) => text.includes(word));
}
