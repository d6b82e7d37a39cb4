// The client of the dashboard's QueryService, and what the clients of other services share. The
// browser adds the session cookie by itself.
import { Code, ConnectError, createClient, type Client, type Transport } from "@connectrpc/connect";
import { createGrpcWebTransport } from "@connectrpc/connect-web";
import { QueryService } from "./gen/braid/query/v1/query_pb";
import { t } from "./text";

export type Query = Client<typeof QueryService>;

// transport carries the calls of every service. The cookie is sent to the page's own origin only,
// and the server refuses a call that a page of another site makes.
export function transport(): Transport {
  return createGrpcWebTransport({ baseUrl: window.location.origin, useBinaryFormat: true });
}

export function connect(): Query {
  return createClient(QueryService, transport());
}

export function isSignedOut(error: unknown): boolean {
  return ConnectError.from(error).code === Code.Unauthenticated;
}

export function reason(error: unknown): string {
  const { rawMessage, cause } = ConnectError.from(error);
  // The browser's own text, such as "Failed to fetch", says nothing to people.
  return cause instanceof TypeError ? t("the dashboard does not answer") : rawMessage;
}
