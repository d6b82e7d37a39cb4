// Gateways: their certificates, tokens for new ones, and revocations.
import { h, setText, type Row } from "../dom";
import type { Gateway } from "../gen/braid/identity/v1/identity_pb";
import { t } from "../text";
import type { Change } from "./change";
import { moment, type Context } from "./context";
import type { Host, Section } from "./frame";
import { choice, listView } from "./list";
import { qrCode } from "./qr";

const HOURS = [[1, "1"], [24, "24"], [168, "168"], [720, "720"]] as const;

const isRevoked = ({ revoked }: Gateway): boolean => revoked !== undefined && !revoked.letInAgain;

export function gatewaysSection(context: Context, host: Host): Section {
  const { guarded, administration } = context;
  const state = choice(t("State"), [["", t("All")], ["certificate", t("with a certificate")], ["enrolling", t("a token is out")], ["revoked", t("revoked")]]);
  const list = listView<Gateway>({
    title: t("Gateways"),
    search: t("Find a gateway by id"),
    empty: t("No gateway is enrolled."),
    actions: [h("button", { type: "button", class: "primary", onclick: () => host.change(enrolment(context, "")) }, t("Enrol a gateway"))],
    filters: [state],
    load: async () => ({ items: (await guarded(administration.listGateways({}))).gateways, more: false }),
    key: ({ id }) => id,
    texts: ({ id, revoked }) => [id, revoked?.reason ?? ""],
    passes: (gateway) => state.value === "" || (state.value === "revoked" ? isRevoked(gateway) : state.value === "enrolling" ? gateway.enrolling : gateway.certificateUntilUs > 0n && !isRevoked(gateway)),
    row: (gateway) => gatewayRow(context, host, gateway),
  });
  return { element: h("div", {}, list.element), show: () => void list.reload() };
}

function gatewayRow(context: Context, host: Host, { id }: Gateway): Row<Gateway> {
  const about = h("span", { class: "dim" });
  const status = h("span", { class: "tag" });
  const named = () => h("span", { class: "visually-hidden" }, ` ${id}`);
  const token = h("button", { type: "button", onclick: () => host.change(enrolment(context, id)) }, t("New token"), named());
  const revoke = h("button", { type: "button", class: "danger", onclick: () => host.change(revocation(context, id)) }, t("Revoke"), named());
  const element = h("li", { "data-entry": id }, h("div", { class: "grow" }, h("b", { class: "entry-name" }, id), about), status, h("span", { class: "buttons" }, token, revoke));
  return {
    element,
    update(gateway) {
      const { certificateUntilUs, enrolling, revoked } = gateway;
      const parts = [
        certificateUntilUs > 0n ? t("certificate until {time}", { time: moment(certificateUntilUs) }) : t("no certificate by token"),
        revoked && t("revoked {time} by {name}: {reason}", { time: moment(revoked.atUs), name: revoked.by, reason: revoked.reason }),
        revoked?.letInAgain && t("admitted again since"),
      ];
      setText(about, parts.filter(Boolean).join(" · "));
      setText(status, isRevoked(gateway) ? t("revoked") : enrolling ? t("a token is out") : "");
      status.hidden = status.textContent === "";
      element.dataset["status"] = isRevoked(gateway) ? "revoked" : "";
      revoke.hidden = isRevoked(gateway);
    },
  };
}

function enrolment({ guarded, administration }: Context, gateway: string): Change {
  return {
    title: gateway === "" ? t("Enrol a gateway") : t("New token for {gateway}", { gateway }),
    verb: t("Make a token"),
    fields: [
      { name: "gateway", label: t("Id of the gateway"), value: gateway, required: true },
      { name: "hours", label: t("Hours for which the token is valid"), type: "select", value: "24", options: HOURS.map(([hours, text]) => [String(hours), text]) },
    ],
    async check({ gateway: id = "", hours = "" }) {
      const { gateways } = await guarded(administration.listGateways({}));
      const known = gateways.find((it) => it.id === id);
      const lines = [known ? t("A token lets {gateway} get a new certificate, once, within {hours} h.", { gateway: id, hours }) : t("{gateway} is entered, and a token lets it get its certificate, once, within {hours} h.", { gateway: id, hours })];
      const warnings = [known && isRevoked(known) && t("{gateway} is revoked. The token admits it again.", { gateway: id }), known?.enrolling && t("Another token for {gateway} is out.", { gateway: id })];
      return { lines, warnings: warnings.filter((it) => typeof it === "string") };
    },
    async write({ gateway: id = "", hours = "" }, reason) {
      const { token, untilUs } = await guarded(administration.enrolGateway({ gateway: id, validHours: Number(hours), reason }));
      return tokenView(id, token, untilUs);
    },
  };
}

// tokenView shows a token. The page does not keep it.
function tokenView(gateway: string, token: string, untilUs: bigint): HTMLElement {
  const command = `braid gateway --enrol ${token} --enrol-url ${window.location.origin} --cert ${gateway}.pem --key ${gateway}.key --ca ca.pem`;
  const copied = h("span", { class: "dim", role: "status" });
  const copy = h("button", { type: "button" }, t("Copy the token"));
  copy.addEventListener("click", () => {
    navigator.clipboard?.writeText(token).then(
      () => setText(copied, t("Copied.")),
      () => setText(copied, t("The browser does not copy. Select the token.")),
    );
  });
  // A browser has no clipboard on a page without TLS.
  copy.hidden = navigator.clipboard === undefined;
  return h(
    "div",
    { class: "token" },
    h("p", {}, t("The token for {gateway} is shown once. It is valid until {time}.", { gateway, time: moment(untilUs) })),
    h("div", { class: "token-parts" }, qrCode(token, t("The token as a QR code")), h("div", {}, h("code", { id: "token", tabindex: "0" }, token), h("p", { class: "buttons" }, copy, copied))),
    h("p", {}, t("On the gateway:")),
    h("pre", { tabindex: "0" }, command),
  );
}

function revocation({ guarded, administration }: Context, gateway: string): Change {
  return {
    title: t("Revoke {gateway}", { gateway }),
    verb: t("Revoke"),
    isDangerous: true,
    fields: [],
    check: async () => ({
      lines: [t("Every certificate of {gateway} is refused within seconds. Readings of its sensors do not arrive any more.", { gateway }), t("A gateway that hears of it destroys its key, and with it the readings that it has not sent.")],
      warnings: [],
    }),
    write: async (_, reason) => void (await guarded(administration.revokeGateway({ gateway, reason }))),
  };
}
