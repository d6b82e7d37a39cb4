// Helpers with which views build and update elements.

type Child = Node | string | null | undefined | false;
type Props = Record<string, string | number | boolean | null | undefined | ((event: Event) => void)>;

// h builds an element. A function is a listener (`onclick`), true an empty attribute, false and
// null none.
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  props: Props = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else setAttribute(element, name, value);
  }
  element.append(...children.filter((child): child is Node | string => child != null && child !== false));
  return element;
}

export function setAttribute(element: Element, name: string, value: string | number | boolean | null | undefined): void {
  if (value === false || value == null) element.removeAttribute(name);
  else {
    const text = value === true ? "" : String(value);
    if (element.getAttribute(name) !== text) element.setAttribute(name, text);
  }
}

export function setText(element: Element, text: string): void {
  if (element.textContent !== text) element.textContent = text;
}

// Distance from the visible part at which an element counts as near.
const NEAR_PX = 600;
const nearCalls = new WeakMap<Element, () => void>();
const nearness = new IntersectionObserver(
  (entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      nearness.unobserve(target);
      nearCalls.get(target)?.();
    }
  },
  { rootMargin: `${NEAR_PX}px` },
);

// whenNear calls once, when the element first comes near the visible part of the page. Fields of a
// form are built so, because the browser lays each one out although its row is far away.
export function whenNear(element: Element, call: () => void): void {
  nearCalls.set(element, call);
  nearness.observe(element);
}

export interface Row<T> {
  readonly element: HTMLElement;
  update(item: T): void;
}

// KeyedList keeps one row for each key and moves rows only when the order changes, so focus and
// half-typed text survive updates.
export class KeyedList<T> {
  readonly #rows = new Map<string, Row<T>>();

  constructor(
    private readonly host: HTMLElement,
    private readonly key: (item: T) => string,
    private readonly build: (item: T) => Row<T>,
  ) {}

  update(items: readonly T[]): void {
    const alive = new Set<string>();
    let before: ChildNode | null = this.host.firstChild;
    for (const item of items) {
      const key = this.key(item);
      alive.add(key);
      let row = this.#rows.get(key);
      if (!row) {
        row = this.build(item);
        this.#rows.set(key, row);
      }
      row.update(item);
      if (row.element === before) before = before.nextSibling;
      else this.host.insertBefore(row.element, before);
    }
    for (const [key, row] of this.#rows) {
      if (alive.has(key)) continue;
      row.element.remove();
      this.#rows.delete(key);
    }
  }
}
