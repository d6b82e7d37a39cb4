// The sign-in form.
import { h, setText } from "../dom";
import { signIn, SignInError, viaProvider, type Session } from "../session";
import { t } from "../text";

export function signInView(host: HTMLElement, notice: string, done: (session: Session) => void): void {
  const name = h("input", { id: "name", name: "username", autocomplete: "username", required: true, autocapitalize: "none", spellcheck: "false" });
  const password = h("input", { id: "password", name: "password", type: "password", autocomplete: "current-password", required: true });
  const button = h("button", { type: "submit", class: "primary" }, t("Sign in"));
  const message = h("p", { class: "message", role: "alert" }, notice);
  const elsewhere = h("p", { class: "dim fine" });
  void viaProvider().then((available) => {
    if (available) elsewhere.replaceChildren(h("a", { href: "/api/sso/begin" }, t("Sign in with your organisation")));
  });
  const submit = async (event: Event) => {
    event.preventDefault();
    button.disabled = true;
    setText(message, "");
    try {
      done(await signIn(name.value.trim(), password.value));
    } catch (error) {
      setText(message, error instanceof SignInError ? error.message : t("Signing in failed."));
      password.select();
    } finally {
      button.disabled = false;
    }
  };
  host.replaceChildren(
    h(
      "main",
      { class: "signin" },
      h(
        "form",
        { class: "card", onsubmit: (event) => void submit(event) },
        h("h1", { class: "brand" }, brandMark(), "Braid"),
        h("p", { class: "dim" }, t("Sign in to see the ward.")),
        h("label", { for: "name" }, t("Name")),
        name,
        h("label", { for: "password" }, t("Password")),
        password,
        message,
        button,
        elsewhere,
      ),
      h("p", { class: "dim fine" }, t("Braid is not a certified medical device.")),
    ),
  );
  name.focus();
}

export function brandMark(): SVGElement {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 32 32");
  svg.setAttribute("class", "mark");
  svg.setAttribute("aria-hidden", "true");
  for (const [d, strand] of [
    ["M3 10c6 0 8 12 14 12s6-12 12-12", "a"],
    ["M3 22c6 0 8-12 14-12s6 12 12 12", "b"],
  ] as const) {
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    path.setAttribute("d", d);
    path.setAttribute("class", `strand-${strand}`);
    svg.append(path);
  }
  return svg;
}
