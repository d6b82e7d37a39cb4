// Whom a search means: every word of it is somewhere in a patient's name or id, whatever the case and the accents.

function fold(text: string): string {
  return text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();
}

export function finds(search: string, ...texts: readonly string[]): boolean {
  if (search === "") return true;
  const text = fold(texts.join(" "));
  return fold(search).split(/\s+/).every((word) => text.includes(word));
}
