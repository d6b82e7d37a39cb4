// A list of the administration: search, filters, and what it leaves out. Entries are drawn in
// pages, so that thousands cost no more than the first.
import { h, KeyedList, setText, type Row } from "../dom";
import { rank } from "../search";
import { many, t } from "../text";

// Entries drawn at first, and by each further click.
const SHOWN = 50;

export interface Loaded<T> {
  readonly items: readonly T[];
  // True: the server has more than was loaded.
  readonly more: boolean;
}

export interface ListOptions<T> {
  readonly title: string;
  readonly search: string;
  readonly empty: string;
  // Says which entries were not loaded.
  readonly moreText?: string;
  readonly actions?: readonly HTMLElement[];
  readonly filters?: readonly HTMLElement[];
  load(): Promise<Loaded<T>>;
  key(item: T): string;
  texts(item: T): readonly string[];
  passes?(item: T): boolean;
  row(item: T): Row<T>;
}

export interface ListView {
  readonly element: HTMLElement;
  reload(): Promise<void>;
  draw(): void;
}

export function listView<T>(options: ListOptions<T>): ListView {
  let loaded: Loaded<T> | undefined;
  let failed = "";
  let shown = SHOWN;
  let asked = 0;
  const count = h("span", { class: "dim", role: "status" });
  const search = h("input", { type: "search", "aria-label": options.search, placeholder: options.search, spellcheck: "false", maxlength: 200 });
  const list = h("ul", { class: "entries" });
  const rows = new KeyedList<T>(list, options.key, options.row);
  const empty = h("p", { class: "empty" });
  const again = h("button", { type: "button", onclick: () => void reload() }, t("Try again"));
  const more = h("button", { type: "button", class: "more-entries", onclick: () => ((shown += SHOWN), draw()) });
  const beyond = h("p", { class: "more" }, options.moreText ?? "");
  const element = h(
    "section",
    { class: "panel", "aria-label": options.title },
    h("header", {}, h("h2", {}, options.title), count, h("span", { class: "grow" }), ...(options.actions ?? [])),
    h("div", { class: "find" }, search, ...(options.filters ?? [])),
    list,
    empty,
    again,
    more,
    beyond,
  );
  const draw = () => {
    again.hidden = failed === "";
    const items = loaded?.items ?? [];
    const wanted = search.value.trim();
    const passing = options.passes ? items.filter((item) => options.passes?.(item)) : items;
    const ranked = passing.map((item) => ({ item, rank: rank(wanted, ...options.texts(item)) })).filter(({ rank }) => rank > 0);
    if (wanted !== "") ranked.sort((a, b) => b.rank - a.rank);
    const found = ranked.map(({ item }) => item);
    rows.update(found.slice(0, shown));
    const left = found.length - shown;
    more.hidden = left <= 0;
    setText(more, t("Show {count} more of {all}", { count: Math.min(left, SHOWN), all: left }));
    beyond.hidden = loaded?.more !== true;
    const isAll = found.length === items.length;
    setText(count, loaded === undefined ? "" : isAll ? many(items.length, "{count} entry", "{count} entries") : t("{count} of {all}", { count: found.length, all: items.length }));
    empty.hidden = found.length > 0;
    setText(empty, failed !== "" ? failed : loaded === undefined ? t("Loading…") : items.length === 0 ? options.empty : t("Nothing matches the search and filters."));
    empty.setAttribute("role", failed === "" ? "status" : "alert");
  };
  const reload = async () => {
    const mine = ++asked;
    try {
      const next = await options.load();
      if (mine !== asked) return;
      loaded = next;
      failed = "";
    } catch (error) {
      if (mine !== asked) return;
      failed = error instanceof Error ? error.message : String(error);
      loaded = undefined;
    }
    draw();
  };
  const start = () => {
    shown = SHOWN;
    draw();
  };
  search.addEventListener("input", start);
  for (const filter of options.filters ?? []) filter.addEventListener("change", start);
  draw();
  return { element, reload, draw };
}

// choice is a labelled filter.
export function choice(label: string, options: readonly (readonly [value: string, text: string])[], value = ""): HTMLSelectElement {
  return h("select", { "aria-label": label }, ...options.map(([key, text]) => h("option", { value: key, selected: key === value }, text)));
}
