// The data of every gateway's accesses, those nearest to their cap first, and why a flow takes
// which.
import { byUrgency, capShare, rulesText, useText, versionText } from "../access";
import { nowS } from "../clock";
import { h, KeyedList, setAttribute, setText, type Row } from "../dom";
import type { ExplainSteeringResponse } from "../gen/braid/query/v1/query_pb";
import type { Model } from "../model";
import { finds } from "../search";
import type { PathTrack } from "../tracks";

// Accesses on the page; a search finds the others.
const SHOWN_MAX = 40;
const DESTINATION_LENGTH_MAX = 262;
const NAME_LENGTH_MAX = 80;
// A cap of which this part is used stands out.
const NEAR_CAP = 0.8;

export interface Asked {
  readonly gateway: string;
  readonly destination: string;
  readonly application: string;
  readonly urgency: string;
  readonly protocol: string;
}

export interface SteeringActions {
  readonly mayAct: boolean;
  explain(asked: Asked): Promise<ExplainSteeringResponse>;
}

export function steeringView(model: Model, actions: SteeringActions): { element: HTMLElement; draw(): void } {
  const count = h("span", { class: "dim" });
  const search = h("input", { type: "search", class: "search", placeholder: "Find a gateway", "aria-label": "Find a gateway", spellcheck: "false", autocomplete: "off" });
  const list = h("ul", { class: "accesses" });
  const more = h("p", { class: "more" });
  const empty = h("p", { class: "empty" });
  const all = h("details", { class: "all-accesses" }, h("summary", {}, "Data of all gateways"), search, list, more, empty);
  const explain = actions.mayAct ? explainForm(actions) : undefined;
  const element = h("section", { class: "panel steering-panel", "aria-label": "Data and steering of all gateways" }, h("header", {}, h("h2", {}, "Data and steering"), count), all, explain?.element);
  const rows = new KeyedList<PathTrack>(list, keyOf, accessRow);
  const draw = () => {
    const tracks = [...model.paths.values()].filter((track) => track.access !== undefined);
    element.hidden = model.paths.size === 0;
    setText(count, countText(tracks));
    explain?.follow(model.patient()?.gateway ?? tracks[0]?.gateway ?? "");
    if (!all.open) return;
    const found = byUrgency(tracks).filter((track) => finds(search.value, track.gateway, track.name));
    rows.update(found.slice(0, SHOWN_MAX));
    const left = found.length - SHOWN_MAX;
    more.hidden = left <= 0;
    setText(more, `${left} more with smaller parts of their caps not shown; find them by name`);
    empty.hidden = found.length > 0;
    setText(empty, tracks.length === 0 ? "No gateway has reported its data yet." : "No gateway has this name.");
  };
  search.addEventListener("input", draw);
  all.addEventListener("toggle", draw);
  return { element, draw };
}

function keyOf({ gateway, name }: PathTrack): string {
  return JSON.stringify([gateway, name]);
}

function countText(tracks: readonly PathTrack[]): string {
  const gateways = new Set(tracks.map(({ gateway }) => gateway)).size;
  const near = tracks.filter(({ access }) => access && capShare(access) >= NEAR_CAP).length;
  const parts = [`${gateways} ${gateways === 1 ? "gateway" : "gateways"}`, near > 0 && `${near} near a cap`];
  return gateways === 0 ? "" : parts.filter(Boolean).join(" · ");
}

function accessRow(first: PathTrack): Row<PathTrack> {
  const version = h("span", { class: "dim" });
  const month = h("p", {});
  const bar = h("span", {});
  const cap = h("div", { class: "cap" }, bar);
  const rules = h("p", { class: "dim" });
  const element = h("li", { "data-gateway": first.gateway, "data-access": first.name }, h("p", {}, h("b", {}, `${first.gateway} ${first.name}`), " ", version), month, cap, rules);
  return {
    element,
    update({ access, steeringVersion, accessAtS }) {
      if (!access) return;
      setText(version, versionText(steeringVersion));
      setText(month, useText(access, nowS() - accessAtS));
      const share = capShare(access);
      cap.hidden = access.capBytes === undefined;
      bar.style.width = `${Math.min(100, share * 100)}%`;
      setAttribute(element, "data-cap", share >= 1 ? "reached" : share >= NEAR_CAP ? "near" : null);
      setText(rules, rulesText(access));
    },
  };
}

function explainForm(actions: SteeringActions): { element: HTMLElement; follow(gateway: string): void } {
  const gateway = h("input", { type: "text", required: true, maxlength: NAME_LENGTH_MAX, "aria-label": "Gateway", placeholder: "Gateway", spellcheck: "false" });
  const destination = h("input", { type: "text", required: true, maxlength: DESTINATION_LENGTH_MAX, "aria-label": "Destination", placeholder: "deb.example.org:443", spellcheck: "false" });
  const application = h("input", { type: "text", maxlength: NAME_LENGTH_MAX, "aria-label": "Application", placeholder: "applications", list: "applications", spellcheck: "false" });
  const known = h("datalist", { id: "applications" }, ...["applications", "applications-prompt", "tun", "vitals", "alerts"].map((name) => h("option", { value: name })));
  const choose = (label: string, values: readonly string[]) => h("select", { "aria-label": label }, ...values.map((value) => h("option", { value }, value)));
  const urgency = choose("Urgency", ["bulk", "prompt", "alert"]);
  const protocol = choose("Protocol", ["tcp", "udp", "ip"]);
  const confirm = h("button", { type: "submit" }, "Explain");
  const failure = h("p", { class: "message", role: "alert" });
  const answer = h("pre", { class: "explained", tabindex: "0", role: "status", "aria-label": "Explanation" });
  answer.hidden = true;
  let followed = "";
  const form = h(
    "form",
    {
      onsubmit: (event) => {
        event.preventDefault();
        confirm.disabled = true;
        setText(failure, "");
        answer.hidden = true;
        actions
          .explain({ gateway: gateway.value.trim(), destination: destination.value.trim(), application: application.value.trim(), urgency: urgency.value, protocol: protocol.value })
          .then(({ text }) => {
            setText(answer, text.trimEnd());
            answer.hidden = false;
          })
          .catch((error: unknown) => setText(failure, error instanceof Error ? error.message : "It was not explained."))
          .finally(() => (confirm.disabled = false));
      },
    },
    gateway,
    destination,
    application,
    known,
    urgency,
    protocol,
    confirm,
    failure,
    answer,
  );
  return {
    element: h("details", { class: "explain" }, h("summary", {}, "Explain which accesses a flow takes"), form),
    // The gateway of the selected patient, unless a person has written another one.
    follow(next) {
      if (gateway.value !== followed || document.activeElement === gateway) return;
      followed = next;
      gateway.value = next;
    },
  };
}
