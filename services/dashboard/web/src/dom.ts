// Helpers with which views build and update elements.
import { breathe } from "./breathe";

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
const nearCalls = new WeakMap<Element, (isNear: boolean) => void>();
// The newest state of each element, because rows are built in slices.
const nearStates = new WeakMap<Element, boolean>();
// A longer slice would delay a click.
const SLICE_MS = 20;

async function placeRows(targets: readonly Element[]): Promise<void> {
  let fromMs = performance.now();
  for (const target of targets) {
    nearCalls.get(target)?.(nearStates.get(target) === true);
    if (performance.now() - fromMs < SLICE_MS) continue;
    await breathe();
    fromMs = performance.now();
  }
}

const nearness = new IntersectionObserver(
  (entries) => {
    for (const { isIntersecting, target } of entries) nearStates.set(target, isIntersecting);
    void placeRows(entries.map(({ target }) => target));
  },
  // The second margin is for lists that scroll by themselves. A browser without it builds a row
  // once it is in sight.
  { rootMargin: `${NEAR_PX}px`, scrollMargin: `${NEAR_PX}px` } as IntersectionObserverInit,
);

export interface Row<T> {
  readonly element: HTMLElement;
  update(item: T): void;
  // end is called when the row leaves for good.
  end?(): void;
}

// nearRow is a row whose content exists only near the visible part of the page, since a ward has
// hundreds of rows. A row that leaves drops its content, so that no old value comes into sight.
// `always` updates what the element itself says.
export function nearRow<T>(element: HTMLElement, always: (item: T) => void, build: () => { readonly content: readonly HTMLElement[]; update(item: T): void }): Row<T> {
  let item: T;
  let built: ReturnType<typeof build> | undefined;
  nearCalls.set(element, (isNear) => {
    if (isNear === (built !== undefined)) return;
    if (isNear) {
      built = build();
      element.append(...built.content);
      built.update(item);
    } else {
      built?.content.forEach((part) => part.remove());
      built = undefined;
    }
  });
  nearness.observe(element);
  return {
    element,
    update(next) {
      item = next;
      always(next);
      built?.update(next);
    },
    end: () => nearness.unobserve(element),
  };
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
      // A row that moved down stands before its follower. It waits at the end for its turn, so the
      // others stay.
      if (row.element !== before && before && before.nextSibling === row.element) {
        this.host.append(before);
        before = row.element;
      }
      if (row.element === before) before = before.nextSibling;
      else this.host.insertBefore(row.element, before);
    }
    for (const [key, row] of this.#rows) {
      if (alive.has(key)) continue;
      row.element.remove();
      row.end?.();
      this.#rows.delete(key);
    }
  }
}
