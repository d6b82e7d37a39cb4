// The page's texts and formats in the language of the person. English is in the sources; a file of
// `text/` has each text in another language.

export const LANGUAGES = { en: "English", de: "Deutsch", es: "Español" } as const;
export type Language = keyof typeof LANGUAGES;
type Texts = Readonly<Record<string, string>>;

const KEY = "braid.language";

let texts: Texts = {};
let locale = "en";
let shown: Language = "en";
let formats = formatsOf(locale);
let plural = new Intl.PluralRules(locale);

// chosen is the person's own choice, or the first language of the browser that the page has.
export function language(): Language {
  const wanted = [localStorage.getItem(KEY) ?? "", ...navigator.languages];
  return wanted.map((tag) => tag.split("-")[0] as Language).find((tag) => tag in LANGUAGES) ?? "en";
}

export function choose(next: Language): void {
  localStorage.setItem(KEY, next);
}

// loadTexts must end before anything is shown. Without its file a language is English.
export async function loadTexts(): Promise<void> {
  const wanted = language();
  try {
    if (wanted === "de") texts = (await import("./text/de.json")).default;
    if (wanted === "es") texts = (await import("./text/es.json")).default;
  } catch {
    return;
  }
  shown = wanted;
  // The region of the browser decides between formats of one language.
  locale = navigator.languages.find((tag) => tag.split("-")[0] === wanted) ?? wanted;
  formats = formatsOf(locale);
  plural = new Intl.PluralRules(locale);
  document.documentElement.lang = wanted;
}

// shownLanguage is the language of the texts that are loaded.
export const shownLanguage = (): Language => shown;

type Values = Readonly<Record<string, string | number | bigint>>;

// t is a text with its `{names}` filled in.
export function t(text: string, values: Values = {}): string {
  return fill(texts[text] ?? text, values);
}

// term marks a text of a table, which is translated where it is shown.
export const term = (text: string): string => text;

// many is the text for a count, which fills `{count}`. A file has both under "ONE|MANY".
export function many(count: number | bigint, one: string, other: string, values: Values = {}): string {
  const both = texts[`${one}|${other}`]?.split("|") ?? [one, other];
  const text = plural.select(Number(count)) === "one" ? both[0] : both[1];
  return fill(text ?? other, { count: count.toLocaleString(locale), ...values });
}

function fill(text: string, values: Values): string {
  return text.replace(/\{(\w+)\}/g, (whole, name: string) => (name in values ? String(values[name]) : whole));
}

// Formats are made once, because making one is expensive.
function formatsOf(tag: string) {
  return {
    time: new Intl.DateTimeFormat(tag, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" }),
    minute: new Intl.DateTimeFormat(tag, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" }),
    day: new Intl.DateTimeFormat(tag, { weekday: "short", day: "numeric", month: "short" }),
    numbers: [0, 1, 2].map((digits) => new Intl.NumberFormat(tag, { minimumFractionDigits: digits, maximumFractionDigits: digits, useGrouping: false })),
  };
}

export const timeOf = (at: Date): string => formats.time.format(at);
export const minuteOf = (at: Date): string => formats.minute.format(at);
export const dayOf = (at: Date): string => formats.day.format(at);

// number has a fixed count of decimals, at most two.
export function number(value: number, decimals = 0): string {
  return (formats.numbers[decimals] ?? formats.numbers[0])?.format(value) ?? String(value);
}
