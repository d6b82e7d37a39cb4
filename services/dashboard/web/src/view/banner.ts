// Banners at the top of the page: notices that the page as a whole is unreliable.
//
// A part of the page, or the server by `SystemWarning`, calls `model.setNotices(source, notices)`.
// An empty list ends the notices of that source. Every source has a name of its own, so no source
// ends the notice of another. To add a banner, add a source; this file needs no change.
import { h, KeyedList, setAttribute, setText, type Row } from "../dom";
import { clock } from "../clinical";
import type { Model } from "../model";
import { inOrder, type Notice } from "../notices";
import { t } from "../text";

// Banners on the page at first. Beyond it the least severe are behind a button that counts them.
const SHOWN_MAX = 4;

export function bannerView(model: Model): { element: HTMLElement } {
  const list = h("ul", { class: "banner-list" });
  let isWhole = false;
  const more = h("button", { class: "quiet banner-more", type: "button", onclick: () => toggle() });
  // That nothing is heard takes no place of a warning.
  const unheard = h("p", { class: "banner-more", id: "unheard" });
  // Read out when its text changes. It has no time, so a running clock is not read out.
  const announce = h("p", { class: "visually-hidden", role: "alert" });
  const element = h("section", { class: "banners", "aria-label": t("Warnings about the system") }, announce, list, more, unheard);
  const rows = new KeyedList<Notice>(list, ({ key }) => key, row);
  const update = () => {
    const notices = inOrder(model.notices.values());
    unheard.hidden = model.unheard === "";
    setText(unheard, model.unheard);
    rows.update(isWhole ? notices : notices.slice(0, SHOWN_MAX));
    element.hidden = notices.length === 0 && model.unheard === "";
    more.hidden = notices.length <= SHOWN_MAX;
    setAttribute(more, "aria-expanded", String(isWhole));
    setText(more, isWhole ? t("Show fewer") : t("Show {count} more, less severe", { count: notices.length - SHOWN_MAX }));
    setText(announce, notices.filter(({ severity }) => severity === "critical").map(({ text }) => text).join(" "));
  };
  const toggle = () => {
    isWhole = !isWhole;
    update();
  };
  model.on("notices", update);
  update();
  return { element };
}

function row(): Row<Notice> {
  const text = h("span", { class: "banner-text" });
  const since = h("span", { class: "banner-since" });
  const element = h("li", { class: "banner" }, text, since);
  return {
    element,
    update(notice) {
      setAttribute(element, "data-severity", notice.severity);
      setAttribute(element, "data-code", notice.key);
      setText(text, notice.text);
      setText(since, notice.sinceS === undefined ? "" : ` ${t("Since {time}.", { time: clock(notice.sinceS) })}`);
    },
  };
}
