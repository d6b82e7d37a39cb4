// A wall display that shows no ward. It fills the page, because nobody looks for a form on a wall.
import { h } from "../dom";
import { brandMark } from "./signin";
import { t } from "../text";

export function kioskView(host: HTMLElement, title: string, text: string, signIn?: () => void): void {
  host.replaceChildren(
    h(
      "main",
      { class: "kiosk-end", role: "alert" },
      h("p", { class: "brand" }, brandMark(), "Braid"),
      h("h1", {}, title),
      h("p", {}, text),
      signIn === undefined ? null : h("button", { type: "button", class: "quiet", onclick: signIn }, t("Sign in")),
    ),
  );
}
