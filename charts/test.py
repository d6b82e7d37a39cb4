#!/usr/bin/env python3
"""test.py - checks the charts without a cluster (`make chart`).

The checks are lint, rendered and refused values, and Kubernetes' schemas.

    test.py --schemas LOCATION     the checks; LOCATION is for kubeconform -schema-location
    test.py --copy                 updates the charts' copies of files in infra/ (`make chart-files`)

helm and kubeconform must be on the PATH."""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import tomllib

import yaml

HERE = pathlib.Path(__file__).resolve().parent
CHART, BACKENDS = HERE / "braid", HERE / "backends"
# Folders in infra/ with their files that a chart contains, since a chart cannot read files outside
# of itself.
COPIES = [("envoy", "*.yaml", CHART), ("grafana/dashboards", "*.json", CHART), ("prometheus", "rules.yml", CHART), ("kafka", "*.properties", BACKENDS), ("timescaledb", "*", BACKENDS)]
NOUNS = ["proxy", "envoy", "ingest", "alerting", "path-telemetry", "dashboard"]
# A helm that was built from source reports an old Kubernetes version by default.
KUBERNETES = ["--kube-version", "1.36.3"]
failed = []


def run(*command, given=None):
    return subprocess.run(command, input=given, capture_output=True, text=True)


def check(holds, what):
    print("%s %s" % ("ok    " if holds else "FAILED", what), flush=True)
    if not holds:
        failed.append(what)


def render(chart, *arguments):
    done = run("helm", "template", "braid", str(chart), "--namespace", "ward", *KUBERNETES, *arguments)
    if done.returncode != 0:
        sys.exit("%s %s is not rendered:\n%s" % (chart.name, arguments, done.stderr))
    return done.stdout


def notes(*arguments):
    """The notes of `helm install`, which helm renders only with a cluster."""
    with tempfile.TemporaryDirectory() as folder:
        chart = pathlib.Path(folder) / "braid"
        shutil.copytree(CHART, chart)
        file = chart / "templates" / "NOTES.txt"
        lines = "".join("    " + line + "\n" for line in file.read_text().split("\n"))
        (chart / "templates" / "notes.yaml").write_text("kind: ConfigMap\nmetadata: { name: notes }\ndata:\n  notes: |\n" + lines)
        file.unlink()
        return objects(render(chart, *arguments))["ConfigMap", "notes"]["data"]["notes"]


def objects(text):
    found = {}
    for it in yaml.safe_load_all(text):
        if it:
            found[it["kind"], it["metadata"]["name"]] = it
    return found


def pods(found):
    for (kind, name), it in found.items():
        if kind in ("Deployment", "StatefulSet", "Job"):
            yield name, it["spec"]["template"]
        elif kind == "Pod":
            yield name, it


def refused(what, values, says):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(values, file)
        file.flush()
        done = run("helm", "template", "braid", str(CHART), *KUBERNETES, "--values", file.name)
    check(done.returncode != 0 and says in done.stderr, "refused: %s%s" % (what, "" if says in done.stderr else " (it said: %s)" % done.stderr.strip()))


def every_installation(name, found):
    for pod, template in pods(found):
        spec = template["spec"]
        safe = spec["securityContext"]["runAsNonRoot"] and not spec["automountServiceAccountToken"]
        for container in spec["containers"] + spec.get("initContainers", []):
            own = container["securityContext"]
            safe &= own["readOnlyRootFilesystem"] and own["capabilities"]["drop"] == ["ALL"] and not own["allowPrivilegeEscalation"]
            # The container that creates the proxy's TUN device, if it is configured; `packets`
            # checks it.
            safe &= "add" not in own["capabilities"] and "runAsUser" not in own or (name.startswith("packets") and container["name"] == "tun")
            safe &= "memory" in container["resources"]["limits"] and not container["image"].endswith(":latest")
        safe &= spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"} and not spec["enableServiceLinks"]
        check(safe, "%s: the pod %s has no rights and a limit" % (name, pod))
    for (kind, service), it in found.items():
        if kind == "Service":
            wanted = it["spec"]["selector"]
            met = [pod for pod, template in pods(found) if all(
                template["metadata"]["labels"].get(key) == value for key, value in wanted.items() if not key.startswith("statefulset."))]
            ports = {port["name"] for _, template in pods(found) if _ in met for c in template["spec"]["containers"] for port in c.get("ports", [])}
            check(len(met) == 1 and all(port["targetPort"] in ports for port in it["spec"]["ports"]),
                  "%s: the service %s meets one workload and ports that it has" % (name, service))
    text = json.dumps(list(found.values()))
    check("password=" not in text.lower() and "PRIVATE KEY" not in text, "%s: no secret in what is rendered" % name)


def arguments(found, kind, name):
    return found[kind, name]["spec"]["template"]["spec"]["containers"][0]["args"]


MEGABYTES = {"m": 1, "Mi": 1, "g": 1024, "Gi": 1024}


def megabytes(text):
    return int(text.rstrip("gGmMi")) * MEGABYTES[text.lstrip("0123456789")]


def front(found):
    """Envoy: the sum of its bounds (infra/envoy/README.md) fits into both kinds of container, and
    Prometheus scrapes it."""
    envoy = yaml.safe_load((HERE.parent / "infra" / "envoy" / "envoy.yaml").read_text())
    listeners = {it["name"]: it for it in envoy["static_resources"]["listeners"]}
    limits = envoy["layered_runtime"]["layers"][0]["static_layer"]

    def http(name):
        filters = listeners[name]["filter_chains"][0]["filters"]
        return next(it["typed_config"] for it in filters if it["name"] == "envoy.filters.network.http_connection_manager")

    def connections(name):
        return limits["envoy.resource_limits.listener.%s.connection_limit" % name]
    people = http("people")
    streams = people["http2_protocol_options"]["max_concurrent_streams"]
    # Measured: a request under way, the overhead of its headers, and the same again for the body of
    # question or answer.
    of_stream_kib = 14 + people["max_request_headers_kb"] + people["common_http_protocol_options"]["max_headers_count"] * 0.4 + 24
    of_people = connections("people") * (streams * of_stream_kib + 20) / 1024
    of_devices = connections("devices") * 40 / 1024
    large = next(it["typed_per_filter_config"] for it in people["route_config"]["virtual_hosts"][0]["routes"] if "typed_per_filter_config" in it)
    bucket = large["braid.large_requests"]["token_bucket"]
    waiting_s = int(people["request_timeout"].rstrip("s"))
    of_large = (bucket["max_tokens"] + bucket["tokens_per_fill"] * waiting_s) * large["envoy.filters.http.buffer"]["buffer"]["max_request_bytes"] / 2**20
    all_of_it = 70 + of_people + of_devices + of_large
    compose = {file.name: yaml.safe_load(file.read_text()) for file in (HERE.parent / "compose").glob("*.yml")}
    given = {"compose": compose["front.yml"]["services"]["envoy"]["mem_limit"],
             "chart": found["Deployment", "envoy"]["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"]}
    for where, limit in given.items():
        check(all_of_it < megabytes(limit), "the front: %d MiB at all bounds, and %s gives it %s" % (all_of_it, where, limit))
    monitor = envoy["overload_manager"]["resource_monitors"][0]["typed_config"]
    check(monitor["max_active_downstream_connections"] == connections("people") + connections("devices"), "the front: its listeners' bounds are all that it takes")
    dashboard = (HERE.parent / "infra" / "grafana" / "dashboards" / "platform.json").read_text()
    check(all("/ %d * 100" % connections(name) in dashboard for name in ("people", "devices")), "the front: the dashboard shows shares of its bounds")

    proxies = [compose["access.yml"]["services"]["proxy"]["mem_limit"],
               found["StatefulSet", "proxy"]["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"]]
    check(all(megabytes(it) >= 2048 for it in proxies), "the proxy: %s for the 1,024 MiB of resumable tunnels and its sessions" % proxies)

    metrics = listeners["metrics"]["address"]["socket_address"]["port_value"]
    service, page = found["Service", "envoy"]["spec"], found["Service", "page"]["spec"]
    pod = found["Deployment", "envoy"]["spec"]["template"]["spec"]["containers"][0]
    check({"name": "admin", "containerPort": metrics} in pod["ports"] and {"name": "admin", "port": metrics, "targetPort": "admin"} in service["ports"],
          "the front: its metrics are where a ServiceMonitor of all services looks")
    check([it["name"] for it in page["ports"]] == ["people"] and envoy["admin"]["address"]["socket_address"]["address"] == "127.0.0.1",
          "the front: neither its metrics nor its admin interface is where the page is")
    allowed = [rule.get("from") for rule in found["NetworkPolicy", "envoy"]["spec"]["ingress"] if {"port": "admin"} in rule["ports"]]
    check(allowed == [[{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]], "the front: who watches reads its metrics, and nobody else")
    scraped = yaml.safe_load((HERE.parent / "infra" / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    check({"job_name": "envoy", "static_configs": [{"targets": ["envoy:%d" % metrics]}]} in scraped, "the front: compose's Prometheus reads it")


def anywhere(policy):
    """Ports that it opens to every destination, besides those of DNS and of the collector."""
    return [port["port"] for rule in policy["spec"]["egress"] if "to" not in rule for port in rule["ports"] if port["port"] not in (53, 4317)]


def policies(rendered):
    """The clients that the policies exclude, by their text; `make e2e-cluster` tries it."""
    for name in rendered:
        found = objects(rendered[name])
        kept = [it for (kind, _), it in found.items() if kind == "NetworkPolicy"]
        for it in kept:
            rules = it["spec"].get("ingress", []) + it["spec"]["egress"]
            # Rules without peers, or with an empty list, admit everybody.
            check(all(rule and all(rule.get(peers, True) for peers in ("from", "to", "ports")) for rule in rules),
                  "%s: no rule of the policy %s is empty" % (name, it["metadata"]["name"]))
        for pod, template in pods(found) if kept else ():
            labels = template["metadata"]["labels"].items()
            of = [it for it in kept if it["spec"]["podSelector"]["matchLabels"].items() <= labels]
            check(len(of) == 1 and of[0]["spec"]["policyTypes"] == ["Ingress", "Egress"], "%s: the pod %s is under one policy, both ways" % (name, pod))

    def open_to_all(policy):
        return [port["port"] for rule in policy["spec"].get("ingress", []) if "from" not in rule for port in rule["ports"]]
    for name in ("defaults", "hospital", "backends"):
        opened = {noun: open_to_all(it) for (kind, noun), it in objects(rendered[name]).items() if kind == "NetworkPolicy" and open_to_all(it)}
        check(opened == ({} if name == "backends" else {"envoy": ["people"], "proxy": ["quic", "fallback"]}), "%s: everybody may come to the page and the proxy" % name)

    found = {name: objects(text) for name, text in rendered.items()}
    check(anywhere(found["defaults"]["NetworkPolicy", "proxy"]) == [] and anywhere(found["hospital"]["NetworkPolicy", "proxy"]) == [443, 443],
          "the proxy comes to the ports of its destinations")
    private = objects(render(CHART, "--set", "proxy.allowPrivate={[fd00::5]:8500}"))["NetworkPolicy", "proxy"]
    check(anywhere(private) == [8500, 8500], "the proxy comes to the ports of private destinations")
    check(anywhere(found["defaults"]["NetworkPolicy", "alerting"]) == [443, 465, 587, 8883]
          and anywhere(objects(render(CHART, "--set", "networkPolicy.alertPorts={8443}"))["NetworkPolicy", "alerting"]) == [8443]
          and anywhere(objects(render(CHART, "--set-json", "networkPolicy.alertPorts=[]"))["NetworkPolicy", "alerting"]) == [], "alerts leave by the ports of the values")
    for endpoint, port in (("http://otel:4318", 4318), ("https://otel.example", 443), ("http://otel/v1", 80)):
        traced = objects(render(CHART, "--set", "traces.endpoint=" + endpoint, "--set", "gateway.enabled=true"))
        check([noun for (kind, noun), it in traced.items() if kind == "NetworkPolicy" and {"ports": [{"port": port}]} in it["spec"]["egress"]]
              == ["alerting", "dashboard", "ingest", "path-telemetry", "proxy", "trial", "gateway"], "spans of everybody who has some leave for %s" % endpoint)
    unwatched = objects(render(CHART, "--set-json", "networkPolicy.metricsFrom=[]", "--set", "gateway.enabled=true"))
    readers = {noun: [peer["podSelector"]["matchLabels"]["app.kubernetes.io/name"] for rule in it["spec"].get("ingress", []) if {"port": "admin"} in rule["ports"]
                      for peer in rule["from"]] for (kind, noun), it in unwatched.items() if kind == "NetworkPolicy"}
    check({noun for noun in readers if readers[noun]} == {"ingest", "path-telemetry", "dashboard"} and all(it in ([], ["envoy"]) for it in readers.values()),
          "without metricsFrom nobody reads metrics but Envoy, for readiness")

    def comers(text, noun):
        return [peer["podSelector"]["matchLabels"]["app.kubernetes.io/name"] if "podSelector" in peer else peer
                for rule in objects(text)["NetworkPolicy", noun]["spec"]["ingress"] for peer in rule["from"]]
    keepers = ["ingest", "alerting", "path-telemetry", "dashboard", "exchange"]
    check(comers(rendered["backends"], "kafka") == keepers and comers(rendered["backends"], "timescaledb") == keepers + ["setup", "trial"],
          "backends: the services that use an engine come to it")
    keda = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "keda"}}}
    more = render(BACKENDS, "--set-json", "networkPolicy.from=[%s]" % json.dumps(keda))
    check(comers(more, "kafka") == keepers + [keda], "backends: and who else is named")
    check(not any(kind == "NetworkPolicy" for kind, _ in objects(render(BACKENDS, "--set", "networkPolicy.enabled=false"))), "backends: without policies")
    refused("a port that none can be", {"networkPolicy": {"alertPorts": [0]}}, "alertPorts")
    refused("an unknown key of the policies", {"networkPolicy": {"alertsTo": []}}, "alertsTo")
    done = run("helm", "template", "x", str(BACKENDS), *KUBERNETES, "--set", "networkPolicy.form=x")
    check(done.returncode != 0 and "form" in done.stderr, "refused: an unknown key of the backends' policies")


def policy_file(rendered):
    """The proxy's policy: the ConfigMap is its file, which changes without a restart, and the network policy
    opens the ways of its groups."""
    def proxy(text):
        found = objects(text)
        return (found["StatefulSet", "proxy"]["spec"]["template"], tomllib.loads(found["ConfigMap", "proxy-policy"]["data"]["policy.toml"]),
                found["NetworkPolicy", "proxy"])

    before, document, _ = proxy(rendered["defaults"])
    container, = before["spec"]["containers"]
    check(document == {}, "defaults: the policy is empty")
    check("--policy=/etc/braid/policy.toml" in container["args"], "defaults: the proxy follows its policy from the first on")
    mount, = [it for it in container["volumeMounts"] if it["name"] == "policy"]
    check(mount == {"name": "policy", "mountPath": "/etc/braid", "readOnly": True}
          and {"name": "policy", "configMap": {"name": "proxy-policy"}} in before["spec"]["volumes"],
          "the policy is mounted as a folder, which the kubelet brings up to date")

    values = {"groups": [{"name": 'ward "7"', "gateways": ["acme/gw-1", "hospital/*"], "allow": ["updates.example.org:8443"], "allowPrivate": ["pacs:104"]}],
              "identities": [{"san": "dns:*.vpn.example.org", "tenant": "acme"}, {"san": "email:anna@example.org", "tenant": "acme", "gateway": "anna"}]}
    rendered["policy"] = render(CHART, "--set-json", "proxy.policy=" + json.dumps(values))
    every_installation("policy", objects(rendered["policy"]))
    after, document, ways = proxy(rendered["policy"])
    check(document == {"group": [{"name": 'ward "7"', "gateways": ["acme/gw-1", "hospital/*"], "allow": ["updates.example.org:8443"], "allow_private": ["pacs:104"],
                                  "allow_ip": []}], "identity": values["identities"]}, "policy: the file says what the values say")
    check(after == before, "policy: a change of it restarts no pod")
    check(anywhere(ways) == [8443, 8443, 104, 104], "policy: the proxy comes to the ports of its groups")
    packets = render(CHART, "--set", "proxy.ip.enabled=true", "--set", "proxy.ip.allow={10.8.0.0/24}", "--set-json",
                     "proxy.policy.groups=" + json.dumps([{"name": "g", "gateways": ["acme/*"], "allowIp": ["0.0.0.0/0"]}]))
    blocks = [peer["ipBlock"] for rule in proxy(packets)[2]["spec"]["egress"] for peer in rule.get("to", []) if "ipBlock" in peer]
    check([it["cidr"] for it in blocks] == ["10.8.0.0/24", "0.0.0.0/0"] and "10.0.0.0/8" in blocks[1]["except"], "policy: packets of a group have their ways out")

    def group(**values):
        return {"proxy": {"policy": {"groups": [{"name": "g", "gateways": ["acme/*"], **values}]}}}

    def identity(**values):
        return {"proxy": {"policy": {"identities": [{"san": "dns:a.example", "tenant": "acme", **values}]}}}
    refused("a group's packets of nobody", group(allowIp=["10.8.0.0/24"]), "proxy.ip.enabled")
    refused("a gateway without a tenant", group(gateways=["gw-1"]), "gateways")
    refused("a group's destination without a port", group(allow=["records.example"]), "allow")
    refused("an unknown key of a group", group(allow_private=["pacs:104"]), "allow_private")
    refused("an identity for nobody", identity(), "either a star or a gateway")
    refused("an identity for everybody and one", identity(san="dns:*.example", gateway="a"), "either a star or a gateway")
    refused("an identity of another kind", identity(san="ip:10.0.0.1", gateway="a"), "san")
    refused("a policy as text", {"proxy": {"policy": "[[group]]"}}, "policy")


def canary(rendered):
    """The dashboard's own webhook: its address comes from a Secret, and the network policy permits it."""
    def dashboard(text):
        found = objects(text)
        container = found["Deployment", "dashboard"]["spec"]["template"]["spec"]["containers"][0]
        flags = [flag for flag in container["args"] if flag.startswith("--canary")]
        secrets = {it["name"]: it["valueFrom"]["secretKeyRef"] for it in container.get("env", []) if "valueFrom" in it}
        return flags, secrets.get("BRAID_DASHBOARD_CANARY_WEBHOOK"), anywhere(found["NetworkPolicy", "dashboard"])

    check(dashboard(rendered["defaults"]) == ([], None, []), "defaults: nobody is called by the dashboard")
    text = render(CHART, "--set", "dashboard.canary.webhook.name=pager", "--set", "dashboard.canary.webhookPorts={8443}")
    flags, secret, ways = dashboard(text)
    check(flags == ["--canary-webhook-ca=/etc/ssl/certs/ca-certificates.crt"] and secret == {"name": "pager", "key": "url"},
          "the canary's webhook: its address comes from a Secret")
    check(ways == [8443], "the canary's webhook: the dashboard may reach it")
    refused("the webhook's address among the values", {"dashboard": {"canary": {"webhook": "https://pager.example/s3cret"}}}, "webhook")


def mail(rendered):
    """One mail server of alerting and of the dashboard, which notifies people when alerting fails."""
    def of(text, noun):
        found = objects(text)
        container = found["Deployment", noun]["spec"]["template"]["spec"]["containers"][0]
        flags = [flag for flag in container["args"] if flag.startswith(("--smtp", "--email"))]
        secrets = {it["name"]: it["valueFrom"]["secretKeyRef"] for it in container.get("env", []) if "valueFrom" in it}
        return flags, secrets.get(f"BRAID_{noun.upper()}_SMTP_PASSWORD")

    both = ("alerting", "dashboard")
    check(all(of(rendered["defaults"], noun) == ([], None) for noun in both), "defaults: no mail server")
    values = {"mail": {"smtp": "smtps://mail.example.org:4465", "from": "Braid <braid@example.org>", "to": ["a@example.org", "b@example.org"],
                       "user": "braid", "passwordSecret": {"name": "mail", "key": "password"}}}
    text = render(CHART, "--set-json", "mail=" + json.dumps(values["mail"]))
    expected = ["--smtp=smtps://mail.example.org:4465", "--email-from=Braid <braid@example.org>", "--email-to=a@example.org,b@example.org", "--smtp-user=braid"]
    for noun in both:
        check(of(text, noun) == (expected, {"name": "mail", "key": "password"}), f"mail: {noun} has the server, and its password from a Secret")
    check(anywhere(objects(text)["NetworkPolicy", "dashboard"]) == [4465], "mail: the dashboard may reach the server")
    refused("a mail server without a sender", {"mail": {"smtp": "smtp://mail.example.org"}}, "mail.from")
    refused("a sender without a mail server", {"mail": {"from": "braid@example.org"}}, "mail.smtp")
    refused("a user without a password", {"mail": {"smtp": "smtp://m.example", "from": "a@example.org", "user": "u"}}, "mail.passwordSecret")
    refused("a password in the address", {"mail": {"smtp": "smtp://u:p@mail.example.org", "from": "a@example.org"}}, "smtp")


def provider(rendered):
    """Sign-in at an OpenID Connect provider: flags, secret and authority of the dashboard, and its egress."""
    def dashboard(text):
        found = objects(text)
        pod = found["Deployment", "dashboard"]["spec"]["template"]["spec"]
        container = pod["containers"][0]
        flags = dict(flag[len("--oidc-"):].split("=", 1) for flag in container["args"] if flag.startswith("--oidc-"))
        secrets = {it["name"]: it["valueFrom"]["secretKeyRef"] for it in container.get("env", []) if "valueFrom" in it}
        volumes = {it["name"]: it for it in pod["volumes"]}
        mounts = {it["name"]: it["mountPath"] for it in container["volumeMounts"]}
        ways = anywhere(found["NetworkPolicy", "dashboard"])
        return flags, secrets.get("BRAID_DASHBOARD_OIDC_SECRET"), volumes.get("provider"), mounts.get("provider"), ways

    check(dashboard(rendered["defaults"]) == ({}, None, None, None, []), "defaults: people sign in here only")
    flags, secret, volume, mount, ways = dashboard(rendered["hospital"])
    check(flags == {"issuer": "https://idp.example:8444/realms/ward", "client": "braid", "redirect": "https://ward.example/api/sso/return",
                    "scope": "openid profile", "role-claim": "roles", "tenant-claim": "clinic", "audience": "https://ward.example",
                    "ca": mount + "/ca.crt"}, "hospital: the dashboard knows its provider")
    check(secret == {"name": "ward-client", "key": "client-secret"}, "hospital: the client's secret comes from a Secret")
    check(volume["secret"] == {"secretName": "provider-authority", "items": [{"key": "root.pem", "path": "ca.crt"}]},
          "hospital: who vouches for the provider comes from a Secret")
    check(ways[-1:] == [8444], "hospital: the dashboard may reach its provider")
    holders = [name for name, template in pods(objects(rendered["hospital"])) if "provider-authority" in str(template) or "ward-client" in str(template)]
    check(holders == ["dashboard"], "hospital: nobody but the dashboard has what is for the provider")

    site = ["--set", "dashboard.oidc.issuer=https://idp.example", "--set", "dashboard.oidc.page=https://ward.example"]
    rendered["provider"] = render(CHART, *site)
    flags, secret, volume, _, ways = dashboard(rendered["provider"])
    check(flags["ca"] == "/etc/ssl/certs/ca-certificates.crt" and (secret, volume) == (None, None) and "audience" not in flags,
          "a public provider: the image's own authorities, no secret, no programs")
    check(ways == [443], "a public provider: the way out is 443")
    rendered["provider-map"] = render(CHART, *site, "--set", "dashboard.oidc.ca.configMap=roots")
    _, _, volume, mount, _ = dashboard(rendered["provider-map"])
    check(volume["configMap"] == {"name": "roots", "items": [{"key": "ca.crt", "path": "ca.crt"}]} and mount == "/run/provider",
          "who vouches for the provider may come from a ConfigMap")
    check("ward.example/api/sso/return" in notes(*site) and "sso" not in notes(), "the notes tell what the provider has to know")

    def oidc(**values):
        return {"dashboard": {"oidc": {"issuer": "https://idp.example", "page": "https://ward.example", **values}}}
    refused("an unknown key of the provider", oidc(clientID="x"), "clientID")
    refused("the client's secret among the values", oidc(clientSecret="s3cret"), "clientSecret")
    refused("the client's secret among the values, by another name", oidc(clientSecret={"value": "s3cret"}), "value")
    refused("a provider without TLS", oidc(issuer="http://idp.example"), "issuer")
    refused("a provider's address with a password", oidc(issuer="https://me:secret@idp.example"), "issuer")
    refused("a page with a path", oidc(page="https://ward.example/api/sso/return"), "page")
    refused("a provider that knows no way back", oidc(page=""), "dashboard.oidc.page")
    refused("a scope without openid", oidc(scope="profile openidx"), "scope")
    refused("an audience that is the client", oidc(audience="braid"), "dashboard.oidc.audience")
    refused("two who vouch for the provider", oidc(ca={"secret": "a", "configMap": "b"}), "dashboard.oidc.ca")
    refused("an authority as text", oidc(ca={"pem": "-----BEGIN CERTIFICATE-----"}), "pem")
    refused("a key that none can be", oidc(ca={"secret": "a", "key": "../ca.crt"}), "key")
    for name, values in (("page", "https://ward.example"), ("audience", "a"), ("tenantClaim", "t"), ("ca", {"secret": "s"}), ("clientSecret", {"name": "s"})):
        refused("%s of no provider" % name, oidc(**{"issuer": "", "page": "", name: values}), "dashboard.oidc.issuer")


def feed(rendered):
    """The hospital's feed: off by default, else with its Secret, its Service, and its way in."""
    check(not any(name == "exchange" for kind, name in objects(rendered["defaults"])), "feed: none by default")
    refused("a feed without certificates", {"exchange": {"enabled": True}}, "exchange.hospital.secret")
    site = ["--set", "exchange.enabled=true", "--set", "exchange.hospital.secret=feed", "--set", "exchange.tenant=north"]
    rendered["feed"] = render(CHART, *site, "--set", "exchange.hospital.from={10.1.0.0/16}")
    found = objects(rendered["feed"])
    container = found["Deployment", "exchange"]["spec"]["template"]["spec"]["containers"][0]
    volumes = {it["name"]: it for it in found["Deployment", "exchange"]["spec"]["template"]["spec"]["volumes"]}
    check("--tenant=north" in container["args"] and not any(it.startswith("--cert=") for it in container["args"])
          and volumes["hospital"]["secret"]["secretName"] == "feed", "feed: its certificates are those of its Secret")
    check(found["Service", "hospital"]["spec"]["ports"][0]["port"] == 7006, "feed: a Service for the interface engine")
    ways = found["NetworkPolicy", "exchange"]["spec"]["ingress"]
    check({"ports": [{"port": "serve"}], "from": [{"ipBlock": {"cidr": "10.1.0.0/16"}}]} in ways, "feed: the interface engine comes from its addresses")
    given = objects(render(CHART, *site, "--set", "exchange.hospital.observationsTo=engine.example:2575"))
    container = given["Deployment", "exchange"]["spec"]["template"]["spec"]["containers"][0]
    check("--observations-to=engine.example:2575" in container["args"] and anywhere(given["NetworkPolicy", "exchange"]) == [2575],
          "feed: observations go to the hospital's listener")


def engines(rendered):
    """External Kafka and TimescaleDB: sign-in of each service, and the authorities of the servers."""
    keepers = ["ingest", "alerting", "path-telemetry", "dashboard"]

    def told(text, pod):
        """Its flags of the engines, its password of the bus, and mounted files of authorities."""
        template = dict(pods(objects(text)))[pod]
        container = template["spec"]["containers"][0]
        flags = dict(flag[2:].split("=", 1) for flag in container["args"] if flag.startswith(("--bus", "--store")) and "=" in flag)
        password = [it["valueFrom"]["secretKeyRef"] for it in container.get("env", []) if it["name"] == "BRAID_%s_BUS_PASSWORD" % pod.upper().replace("-", "_")]
        mounts = {it["name"]: it["mountPath"] for it in container["volumeMounts"]}
        files = {mounts[it["name"]] + "/" + (it.get("secret") or it["configMap"])["items"][0]["path"]: it for it in template["spec"]["volumes"] if it["name"] in ("bus-ca", "store-ca")}
        return flags, password, files

    rendered["elsewhere"] = render(CHART, "--set", "bus.brokers=kafka.example:9094", "--set", "bus.user=ward", "--set", "bus.sasl=scram-sha-256",
                                   "--set", "bus.passwordSecret.name=kafka-password", "--set", "bus.ca.public=true", "--set", "store.ca.secret=timescale-ca")
    for pod in keepers:
        flags, password, files = told(rendered["elsewhere"], pod)
        check((flags["bus"], flags["bus-sasl"], flags["bus-ca"]) == ("kafka+tls://ward@kafka.example:9094", "scram-sha-256", "/etc/ssl/certs/ca-certificates.crt")
              and "bus-cert" not in flags and password == [{"name": "kafka-password", "key": "password"}], "elsewhere: %s signs in at Kafka by a password from a Secret" % pod)
        check(list(files) == [flags["store-ca"]] and files[flags["store-ca"]]["secret"]["secretName"] == "timescale-ca", "elsewhere: %s knows who vouches for the store" % pod)
    for pod in ("setup-1", "trial"):
        flags, password, files = told(rendered["elsewhere"], pod)
        check(list(files) == [flags["store-ca"]] and password == [] and "bus" not in flags, "elsewhere: %s knows who vouches for the store" % pod)
    flags, _, files = told(render(CHART, "--set", "bus.ca.configMap=roots", "--set", "bus.ca.key=kafka.pem"), "ingest")
    check(list(files) == [flags["bus-ca"]] and files[flags["bus-ca"]]["configMap"]["items"] == [{"key": "kafka.pem", "path": "ca.crt"}]
          and flags["store-ca"] == "/run/braid/ca.pem", "elsewhere: who vouches for Kafka may come from a ConfigMap, and for the store who does for the services")
    for pod in keepers + ["trial"]:
        flags, password, files = told(rendered["defaults"], pod)
        check(flags["store-ca"] == "/run/braid/ca.pem" and (password, files) == ([], {}) and "@" not in flags.get("bus", ""), "defaults: %s knows the engines by the services' authority" % pod)
        # Without TLS the services refuse a server on another machine, unless the URL permits it.
        flags, _, _ = told(rendered["plain"], pod)
        check(flags["store"].endswith("/braid?sslmode=disable") and "store-ca" not in flags, "plain: %s is told that the store has no TLS" % pod)
    scaled = ["--set", "ingest.autoscaling.by=lag", "--set", "bus.ca.configMap=roots"]
    trigger = objects(render(CHART, *scaled))["TriggerAuthentication", "ingest-bus"]["spec"]
    check(trigger["configMapTargetRef"] == [{"parameter": "ca", "name": "roots", "key": "ca.crt"}]
          and [it["parameter"] for it in trigger["secretTargetRef"]] == ["cert", "key"], "elsewhere: KEDA knows who vouches for Kafka")

    user = {"user": "ward", "passwordSecret": {"name": "kafka-password"}}
    refused("a user among the brokers", {"bus": {"brokers": "ward@kafka:9093"}}, "brokers")
    refused("a user with a password", {"bus": {"user": "ward:secret"}}, "user")
    refused("a user without a password", {"bus": {"user": "ward"}}, "bus.passwordSecret.name")
    refused("a password of nobody", {"bus": {"passwordSecret": {"name": "s"}}}, "bus.user")
    refused("a password in the clear", {"bus": {**user, "tls": False}}, "bus.tls")
    refused("a way to sign in that there is not", {"bus": {**user, "sasl": "gssapi"}}, "sasl")
    refused("lag of a user's", {"bus": user, "ingest": {"autoscaling": {"by": "lag"}}}, "ingest.autoscaling.by")
    refused("two who vouch for the bus", {"bus": {"ca": {"public": True, "secret": "s"}}}, "bus.ca")
    refused("two who vouch for the store", {"store": {"ca": {"configMap": "c", "secret": "s"}}}, "store.ca")
    refused("copies that cannot be in sync", {"bus": {"replication": 1}}, "bus.inSyncMin")


def upgrades():
    """Effects of changed values: pods that read a value only at their start are replaced."""
    def annotations(*values):
        return dict(pods(objects(render(CHART, *values))))["alerting"]["metadata"].get("annotations")
    one, two = (["--set-json", 'alerting.rules="{\\"version\\": 1, \\"rules\\": [%s]}"' % rules] for rules in ("", "{}"))
    check(annotations() is None and annotations(*one) != annotations(*two) and annotations(*one) == annotations(*one), "other rules make alerting's pods anew")
    site = ["--set", "podAnnotations.example/owner=ward"]
    check(set(annotations(*one, *site)) == {"checksum/rules", "example/owner"}, "beside annotations of the site's own")
    refused("fewer pods at most than at least", {"ingest": {"replicas": 4, "autoscaling": {"by": "cpu", "replicasMax": 3}}}, "ingest.autoscaling.replicasMax")
    refused("a share of nothing", {"ingest": {"resources": {"requests": {"cpu": None}}, "autoscaling": {"by": "cpu"}}}, "ingest.resources.requests.cpu")


def odd(rendered):
    """Unusual but valid values."""
    # Names of digits alone are valid names.
    rendered["digits"] = render(CHART, "--values", str(CHART / "ci" / "hospital.yaml"), "--set-string", "priorityClassName=1", "--set-json", 'image.pullSecrets=["7"]',
                                "--set-string", "identities.issuer.name=8", "--set-string", "identities.passwordsSecret=9", "--set-string", "enrolment.authoritySecret=10",
                                "--set-string", "enrolment.believedSecret=11", "--set-string", "dashboard.oidc.clientSecret.name=12")
    for pod, template in pods(objects(rendered["digits"])):
        check(template["spec"]["imagePullSecrets"] == [{"name": "7"}] and template["spec"]["priorityClassName"] == "1", "digits: the pod %s" % pod)
    check(objects(rendered["digits"])["Certificate", "ingest"]["spec"]["issuerRef"]["name"] == "8", "digits: the issuer")
    # A helm that reads numbers as fractions writes large ones as 5e+06, which KEDA refuses.
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write("ingest: { autoscaling: { by: lag, lagRecords: 5000000 } }")
        file.flush()
        trigger, = objects(render(CHART, "--values", file.name))["ScaledObject", "ingest"]["spec"]["triggers"]
        check(trigger["metadata"]["lagThreshold"] == "5000000", "a lag of millions")
    # On nodes with taints, the job and the trial need the tolerations as well.
    for pod, template in pods(objects(rendered["hospital"])):
        spec = template["spec"]
        check(spec["nodeSelector"] and spec["tolerations"] and template["metadata"]["annotations"]["example/owner"] == "telecare", "hospital: the pod %s is where the others are" % pod)
    rendered["v6"] = render(CHART, "--values", str(CHART / "ci" / "try-out.yaml"), "--set", "ipv6=true")
    found = objects(rendered["v6"])
    for pod, template in pods(found):
        for container in template["spec"]["containers"] + template["spec"].get("initContainers", []):
            listens = [flag.split("=", 1)[1] for flag in container.get("args", []) if flag.startswith(("--listen=", "--admin=")) and "127.0.0.1" not in flag]
            check(all(it.startswith("[::]:") for it in listens), "v6: %s in %s listens on both" % (container["name"], pod))
    envoy = yaml.safe_load(found["ConfigMap", "envoy"]["data"]["envoy.yaml"])
    listeners = [it["address"]["socket_address"] for it in envoy["static_resources"]["listeners"]]
    check(all(it["address"] == "::" and it["ipv4_compat"] for it in listeners), "v6: Envoy listens on both")
    check("0.0.0.0" not in json.dumps([it for key, it in found.items() if key[0] != "NetworkPolicy"]), "v6: nobody listens on IPv4 alone")
    long = run("helm", "template", "b" * 53, str(CHART), "--namespace", "2026", *KUBERNETES)
    check(long.returncode == 0, "a name of 53 letters in a namespace of digits %s" % long.stderr)
    rendered["long"] = long.stdout


def packets(rendered):
    """The proxy's TUN device: the rights to create it, the proxy's flags, and the egress rules."""
    def proxy(text):
        found = objects(text)
        pod = found["StatefulSet", "proxy"]["spec"]["template"]["spec"]
        flags = [flag for flag in arguments(found, "StatefulSet", "proxy") if flag.startswith(("--tun", "--ip-pool", "--allow-ip"))]
        ways = [peer["ipBlock"] for rule in found["NetworkPolicy", "proxy"]["spec"]["egress"] for peer in rule.get("to", []) if "ipBlock" in peer]
        return pod, flags, ways

    for name in ("defaults", "hospital", "try-out"):
        pod, flags, ways = proxy(rendered[name])
        check("initContainers" not in pod and not any("hostPath" in it for it in pod["volumes"]) and (flags, ways) == ([], []),
              "%s: the proxy has no device, and no way out for packets" % name)
        check("NET_ADMIN" not in rendered[name] and "TUN device" not in rendered[name], "%s: nobody has a right" % name)

    def ip(**values):
        return {"proxy": {"ip": {"enabled": True, "allow": ["0.0.0.0/0"], **values}}}
    site = ["--set", "proxy.ip.enabled=true", "--set", "proxy.ip.allow={0.0.0.0/0,acme@10.8.0.0/24,::/0}"]
    rendered["packets"] = render(CHART, *site)
    every_installation("packets", objects(rendered["packets"]))
    pod, flags, ways = proxy(rendered["packets"])
    before, _, _ = proxy(rendered["defaults"])
    check(flags == ["--tun=braid0", "--ip-pool=10.64.0.0/16", "--allow-ip=0.0.0.0/0", "--allow-ip=acme@10.8.0.0/24", "--allow-ip=::/0"], "packets: what the proxy is told")
    tun, = pod["initContainers"]
    own = tun["securityContext"]
    check(own["capabilities"] == {"drop": ["ALL"], "add": ["NET_ADMIN"]} and own["runAsUser"] == 0 and not own["allowPrivilegeEscalation"]
          and tun["args"] == ["tun", "--tun=braid0", "--ip-pool=10.64.0.0/16", "--masquerade"], "packets: one right, for what makes the device and ends")
    check(pod["securityContext"] == before["securityContext"] and pod["containers"][0]["securityContext"] == before["containers"][0]["securityContext"],
          "packets: the proxy itself has as few rights as without")
    device = [it for it in pod["volumes"] if "hostPath" in it]
    check(device == [{"name": "tun", "hostPath": {"path": "/dev/net/tun", "type": "CharDevice"}}]
          and {it["mountPath"] for it in pod["containers"][0]["volumeMounts"]} == {"/run/braid", "/etc/braid", "/var/lib/braid", "/dev/net/tun"}, "packets: of the node the proxy has this device alone")
    check([it["cidr"] for it in ways] == ["0.0.0.0/0", "10.8.0.0/24", "::/0"] and "10.0.0.0/8" in ways[0]["except"] and "except" not in ways[1]
          and "fc00::/7" in ways[2]["except"], "packets: the ways out are those of the list, without what is inside of networks")
    check([name for name, template in pods(objects(rendered["packets"])) if "NET_ADMIN" in json.dumps(template)] == ["proxy"], "packets: nobody else has a right")
    check("--tun braid0 --tun-routes" in notes(*site) and "--tun" not in notes(), "packets: the notes tell what a gateway needs")

    rendered["packets-both"] = render(CHART, *site, "--set", "proxy.ip.pools.v6=fd00:64::/112", "--set", "proxy.ip.device=gateways", "--set", "proxy.ip.sysctls=true")
    every_installation("packets-both", objects(rendered["packets-both"]))
    pod, flags, _ = proxy(rendered["packets-both"])
    pools = "--ip-pool=10.64.0.0/16,fd00:64::/112"
    check(flags[:2] == ["--tun=gateways", pools] and pod["initContainers"][0]["args"] == ["tun", "--tun=gateways", pools, "--masquerade"],
          "packets of both versions: one device has both pools")
    check(pod["securityContext"]["sysctls"] == [{"name": name, "value": "1"} for name in ("net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding")],
          "packets of both versions: the kubelet switches forwarding on, if asked to")
    rendered["packets-v6"] = render(CHART, "--set", "proxy.ip.enabled=true", "--set", "proxy.ip.allow={2001:4860::/32}", "--set", "proxy.ip.pools.v4=",
                                    "--set", "proxy.ip.pools.v6=fd00:64::/112", "--set", "proxy.ip.sysctls=true")
    pod, flags, _ = proxy(rendered["packets-v6"])
    check(flags[1] == "--ip-pool=fd00:64::/112" and len(pod["securityContext"]["sysctls"]) == 1, "packets of IPv6 alone")
    check(not any(kind == "NetworkPolicy" for kind, _ in objects(render(CHART, *site, "--set", "networkPolicy.enabled=false"))), "packets without policies")

    refused("packets to nowhere", ip(allow=[]), "proxy.ip.allow")
    refused("packets of nobody", ip(pools={"v4": "", "v6": ""}), "proxy.ip.pools")
    refused("a list of what is switched off", ip(enabled=False), "proxy.ip.enabled")
    refused("an unknown key of packets", ip(pool="10.64.0.0/16"), "pool")
    refused("an unknown pool", ip(pools={"ipv4": "10.64.0.0/16"}), "ipv4")
    refused("a pool of the other version", ip(pools={"v4": "fd00:64::/112"}), "v4")
    refused("a pool that is an address", ip(pools={"v4": "10.64.0.1"}), "v4")
    refused("two pools in one", ip(pools={"v4": "10.64.0.0/16,10.65.0.0/16"}), "v4")
    refused("a name among prefixes", ip(allow=["records.example/24"]), "allow")
    refused("an address among prefixes", ip(allow=["192.0.2.1"]), "allow")
    refused("a tenant without a name", ip(allow=["@192.0.2.0/24"]), "allow")
    refused("a device that the kernel would name", ip(device="tun%d"), "device")
    refused("a device of too long a name", ip(device="sixteen-letters-"), "device")
    refused("a switch that is none", ip(enabled="yes"), "enabled")


def copies():
    """Each file and its place in the chart."""
    for folder, pattern, chart in COPIES:
        for file in sorted((HERE.parent / "infra" / folder).glob(pattern)):
            yield file, chart / "files" / pathlib.Path(folder).name / file.name


def copy():
    for folder, _, chart in COPIES:
        shutil.rmtree(chart / "files" / pathlib.Path(folder).name, ignore_errors=True)
    for file, own in copies():
        own.parent.mkdir(parents=True, exist_ok=True)
        own.write_bytes(file.read_bytes())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--schemas")
    parser.add_argument("--copy", action="store_true")
    asked = parser.parse_args()
    if asked.copy:
        return copy()
    schemas = asked.schemas or sys.exit("--schemas LOCATION is missing, for example --schemas \"$(infra/airgap/k8s-schemas.sh)\"")

    for file, own in copies():
        check(own.exists() and own.read_bytes() == file.read_bytes(), "copy: %s (make chart-files)" % own.relative_to(HERE))
    wanted = {own for _, own in copies()}
    for chart in (CHART, BACKENDS):
        for own in chart.glob("files/*/*"):
            check(own in wanted, "copy: %s comes from somewhere" % own.relative_to(HERE))

    sets = [("defaults", [])] + [(file.stem, ["--values", str(file)]) for file in sorted((CHART / "ci").glob("*.yaml"))]
    rendered = {}
    for name, values in sets:
        done = run("helm", "lint", "--strict", str(CHART), *KUBERNETES, *values)
        check(done.returncode == 0, "lint: %s%s" % (name, "" if done.returncode == 0 else "\n" + done.stdout + done.stderr))
        rendered[name] = render(CHART, *values)
        every_installation(name, objects(rendered[name]))

    found = objects(rendered["defaults"])
    for noun in NOUNS:
        kind = "StatefulSet" if noun == "proxy" else "Deployment"
        check((kind, noun) in found and ("PodDisruptionBudget", noun) in found and ("NetworkPolicy", noun) in found,
              "defaults: %s with disruption budget and network policy" % noun)
    front(found)
    for pod in ("proxy-0", "proxy-1"):
        it = found["Service", pod]["spec"]
        check(it["selector"]["statefulset.kubernetes.io/pod-name"] == pod and it["externalTrafficPolicy"] == "Local"
              and it["ports"][0]["protocol"] == "UDP", "defaults: all paths of a client reach %s" % pod)
        check([p["port"] for p in it["ports"]] == [4433, 4433] and "protocol" not in it["ports"][1], "defaults: %s takes TCP beside UDP" % pod)
    check(found["Service", "page"]["spec"]["externalTrafficPolicy"] == "Local"
          and "externalTrafficPolicy" not in objects(rendered["try-out"])["Service", "page"]["spec"], "defaults: the page learns people's own addresses")
    check("--front=envoy" in arguments(found, "Deployment", "ingest"), "defaults: ingest believes Envoy's word on who is there")
    trial = found["Pod", "trial"]
    check(trial["metadata"]["annotations"]["helm.sh/hook"] == "test" and trial["spec"]["initContainers"][0]["restartPolicy"] == "Always"
          and trial["spec"]["containers"][0]["args"][0] == "trial", "defaults: helm test sends a reading and reads it back")
    grace = found["StatefulSet", "proxy"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    drain = [a for a in arguments(found, "StatefulSet", "proxy") if a.startswith("--drain-ms=")]
    check(drain == ["--drain-ms=20000"] and grace > 20, "defaults: the proxy has time to drain")

    found = objects(rendered["hospital"])
    check(all(("Certificate", noun) in found for noun in NOUNS), "hospital: a certificate for each")
    check(found["Certificate", "trial"]["spec"]["uris"] == ["spiffe://braid/tenant/trial/gateway/trial"], "hospital: the trial's gateway belongs to no ward")
    check(found["Certificate", "ingest"]["spec"]["uris"] == ["spiffe://braid/service/ingest"], "hospital: the name that the services check")
    check(found["Certificate", "envoy"]["spec"]["dnsNames"] == ["envoy", "envoy.ward.svc", "ward.example"]
          and found["Certificate", "ingest"]["spec"]["dnsNames"] == ["ingest", "ingest.ward.svc"], "hospital: the page's name is in its certificate alone")
    check(("ScaledObject", "ingest") in found and ("HorizontalPodAutoscaler", "dashboard") in found
          and "replicas" not in found["Deployment", "ingest"]["spec"], "hospital: scaled by lag and by load, not by the chart too")
    image = found["Deployment", "alerting"]["spec"]["template"]["spec"]["containers"][0]["image"]
    check(image.startswith("registry.example/braid@sha256:"), "hospital: the image is the one of the digest")
    linked = lambda *values: [it for it in arguments(objects(render(CHART, *values)), "Deployment", "alerting") if it.startswith("--public-url=")]
    check(linked() == [] and linked("--set", "dashboard.oidc.issuer=https://idp.example.org,dashboard.oidc.page=https://ward.example.org") == ["--public-url=https://ward.example.org"]
          and linked("--set", "alerting.publicUrl=https://a.example.org") == ["--public-url=https://a.example.org"], "messages link to the page where its address is known")
    check("--rules=/etc/braid/rules.json" in arguments(found, "Deployment", "alerting") and ("ConfigMap", "alerting-rules") in found,
          "hospital: its own rules")
    check("--bus-no-create-topics" in arguments(found, "Deployment", "ingest"), "hospital: creates no topics")
    rules = yaml.safe_load((HERE.parent / "infra" / "prometheus" / "rules.yml").read_text())
    check(("ServiceMonitor", "braid") in found and found["PrometheusRule", "braid"]["spec"] == rules, "hospital: watched by Prometheus, by the rules of infra/prometheus")

    def dashboard(name):
        found = objects(rendered[name])
        return arguments(found, "Deployment", "dashboard"), found["Deployment", "dashboard"]["spec"]["template"]["spec"]["volumes"]

    flags, volumes = dashboard("defaults")
    check(not any(flag.startswith("--authority") for flag in flags) and not any(it["name"] == "authority" for it in volumes),
          "defaults: the dashboard has no authority's key")
    def mounted(name, of):
        """The pods that mount a Secret, with its keys."""
        holders = {}
        for pod, template in pods(objects(rendered[name])):
            for volume in template["spec"]["volumes"]:
                secret = volume.get("secret", {})
                parts = [(secret.get("secretName"), secret)] + [(part["secret"]["name"], part["secret"]) for part in volume.get("projected", {}).get("sources", [])]
                for named, it in parts:
                    if named == of:
                        holders[pod] = [item["path"] for item in it["items"]]
        return holders

    of_gateways = ["gateways.pem", "gateways.key", "ca.pem"]
    for name in ("enrolment", "hospital"):
        flags, _ = dashboard(name)
        check("--authority=/run/authority" in flags, "%s: gateways enrol at the dashboard" % name)
        check(mounted(name, "gateways-authority") == {"dashboard": of_gateways}, "%s: the key of gateways' authority is the dashboard's alone" % name)
        container = objects(rendered[name])["Deployment", "dashboard"]["spec"]["template"]["spec"]["containers"][0]
        env = {it["name"]: it.get("value") or it["valueFrom"]["secretKeyRef"]["name"] for it in container["env"]}
        passwords = {"enrolment": "dashboard-identity", "hospital": "braid-passwords"}[name]
        check(env["BRAID_AUTHORITY"] == "/run/authority" and env["BRAID_STORE_PASSWORD"] == passwords, "%s: `braid gateways` works in the dashboard's container" % name)
    believing = {noun: ["ca.pem"] for noun in ("proxy", "envoy", "ingest", "path-telemetry")}
    check(mounted("hospital", "gateways-believed") == believing, "hospital: who meets gateways believes their authority, and nobody else does")
    check(mounted("defaults", "gateways-authority") == {} and "BRAID_STORE_PASSWORD" not in rendered["defaults"], "defaults: nobody enrols")
    token = "exec deployment/dashboard -- /usr/local/bin/braid gateways enrol"
    said = {name: notes(*values) for name, values in sets}
    check([name for name in said if token in said[name]] == ["enrolment", "hospital"], "the notes tell how to make a token, where one can be made")
    rendered["all"] = render(CHART, "--set", "enrolment.authoritySecret=braid-ca-key", "--set", "enrolment.authority=all")
    check(mounted("all", "braid-ca-key") == {"dashboard": ["ca.pem", "ca.key"]}, "the authority of all: the dashboard's alone")

    canary(rendered)
    mail(rendered)
    provider(rendered)
    packets(rendered)
    policy_file(rendered)
    feed(rendered)
    engines(rendered)
    upgrades()
    odd(rendered)

    found = objects(rendered["try-out"])
    # Nodes of two cores have other work as well.
    asked = sum(int(container["resources"]["requests"]["cpu"][:-1]) for text in (rendered["try-out"], render(BACKENDS)) for _, template in pods(objects(text))
                for container in template["spec"]["containers"] + template["spec"].get("initContainers", []))
    check(asked <= 1200, "try-out: both charts ask for %d thousandths of a core, 1200 at most" % asked)
    check(("StatefulSet", "gateway") in found and "--proxy=proxy-0:4433" in arguments(found, "StatefulSet", "gateway"), "try-out: a gateway of its own")

    found = objects(rendered["plain"])
    check(not any(kind in ("NetworkPolicy", "PodDisruptionBudget", "Job") for kind, _ in found), "plain: nothing optional")
    check("--bus=kafka://kafka:9093" in arguments(found, "Deployment", "ingest"), "plain: without TLS")

    refused("an unknown key", {"ingest": {"replica": 2}}, "replica")
    refused("an unknown service", {"ingests": {}}, "ingests")
    refused("no replica", {"proxy": {"replicas": 0}}, "replicas")
    refused("a password in the URL", {"store": {"url": "postgres://braid:secret@db/braid"}}, "url")
    refused("brokers without a port", {"bus": {"brokers": "kafka"}}, "brokers")
    refused("a destination without a port", {"proxy": {"allow": ["records.example"]}}, "allow")
    refused("an image of a short digest", {"image": {"digest": "sha256:abc"}}, "digest")
    refused("cert-manager without an issuer", {"identities": {"source": "cert-manager", "passwordsSecret": "p"}}, "identities.issuer.name")
    refused("cert-manager without passwords", {"identities": {"source": "cert-manager", "issuer": {"name": "ca"}}}, "identities.passwordsSecret")
    refused("the dashboard by lag", {"dashboard": {"autoscaling": {"by": "lag"}}}, "dashboard.autoscaling.by")
    refused("a gateway without its Secrets", {"gateway": {"enabled": True}, "identities": {
        "source": "cert-manager", "issuer": {"name": "ca"}, "passwordsSecret": "p"}}, "gateway.enabled")
    managed = {"identities": {"source": "cert-manager", "issuer": {"name": "ca"}, "passwordsSecret": "p"}}
    refused("an unknown authority", {"enrolment": {"authoritySecret": "s", "authority": "services"}}, "authority")
    refused("a key among the values", {"enrolment": {"authorityKey": "-----BEGIN PRIVATE KEY-----"}}, "authorityKey")
    refused("a Secret's name that is none", {"enrolment": {"authoritySecret": "a/b"}}, "authoritySecret")
    refused("an authority for gateways that nobody believes", {**managed, "enrolment": {"authoritySecret": "s"}}, "enrolment.believedSecret")
    refused("who is believed without enrolment", {**managed, "enrolment": {"believedSecret": "s"}}, "enrolment.believedSecret")
    refused("who is believed beside identities.sh", {"enrolment": {"authoritySecret": "s", "believedSecret": "b"}}, "enrolment.believedSecret")
    refused("who is believed with the authority of all", {**managed, "enrolment": {
        "authoritySecret": "s", "authority": "all", "believedSecret": "b"}}, "enrolment.believedSecret")
    refused("the page's names without cert-manager", {"envoy": {"hosts": ["ward.example"]}}, "envoy.hosts")
    refused("an address as the page's name", {**managed, "envoy": {"hosts": ["https://ward.example"]}}, "hosts")
    refused("a share above one", {"traces": {"share": 2}}, "share")

    done = run("helm", "lint", "--strict", str(BACKENDS), *KUBERNETES)
    check(done.returncode == 0, "lint: backends%s" % ("" if done.returncode == 0 else "\n" + done.stdout + done.stderr))
    rendered["backends"] = render(BACKENDS)
    found = objects(rendered["backends"])
    check(("StatefulSet", "kafka") in found and ("StatefulSet", "timescaledb") in found, "backends: both engines")
    for pod, template in pods(found):
        spec = template["spec"]
        own = [container["securityContext"] for container in spec["containers"]]
        check(not spec["automountServiceAccountToken"] and spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
              and all(not it["allowPrivilegeEscalation"] and it["capabilities"]["drop"] == ["ALL"] for it in own)
              and all("memory" in container["resources"]["limits"] for container in spec["containers"]), "backends: the pod %s has few rights and a limit" % pod)
    policies(rendered)

    for name, text in rendered.items():
        # Kinds of cert-manager, KEDA and the Prometheus operator are not Kubernetes' own.
        done = run("kubeconform", "-strict", "-summary", "-schema-location", schemas,
                   "-skip", "Certificate,ScaledObject,TriggerAuthentication,ServiceMonitor,PrometheusRule", given=text)
        check(done.returncode == 0, "Kubernetes' schemas: %s: %s" % (name, (done.stdout + done.stderr).strip()))

    if failed:
        sys.exit("%d checks failed" % len(failed))


if __name__ == "__main__":
    main()
