{{- define "braid.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* (list ROOT NOUN) */}}
{{- define "braid.selector" -}}
app.kubernetes.io/name: {{ index . 1 }}
app.kubernetes.io/part-of: braid
{{- end -}}

{{- define "braid.labels" -}}
{{ include "braid.selector" . }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ (index . 0).Chart.Name }}-{{ (index . 0).Chart.Version }}
{{- end -}}

{{/* Ports by noun: service and admin. */}}
{{- define "braid.port" -}}
{{- get (dict "ingest" "7001" "alerting" "7002" "path-telemetry" "7003" "exchange" "7006" "dashboard" "8080" "proxy" "4433") . -}}
{{- end -}}
{{- define "braid.admin" -}}
{{- get (dict "gateway" "9101" "proxy" "9102" "ingest" "9103" "alerting" "9104" "path-telemetry" "9105" "dashboard" "9106" "setup" "9108" "exchange" "9109") . -}}
{{- end -}}

{{/* Every address of the pod. The IPv6 one takes IPv4, too. */}}
{{- define "braid.any" -}}
{{ ternary "[::]" "0.0.0.0" .Values.ipv6 }}
{{- end -}}

{{- define "braid.pod-security" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: { type: RuntimeDefault }
{{- end -}}

{{- define "braid.container-security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end -}}

{{/* (list ROOT NOUN): certificate, key and authority of the noun, and its passwords where it has any. */}}
{{- define "braid.identity-volume" -}}
{{- $root := index . 0 }}{{ $noun := index . 1 -}}
name: identity
{{- $meets := has $noun (list "proxy" "envoy" "ingest" "path-telemetry") }}
{{- if and $meets $root.Values.enrolment.believedSecret }}
# Who meets gateways believes their authority, too.
projected:
  defaultMode: 0440
  sources:
    - secret:
        name: {{ $noun }}-identity
        items:
          - { key: tls.crt, path: {{ $noun }}.pem }
          - { key: tls.key, path: {{ $noun }}.key }
    - secret: { name: {{ $root.Values.enrolment.believedSecret | quote }}, items: [{ key: ca.pem, path: ca.pem }] }
{{- else if eq $root.Values.identities.source "cert-manager" }}
secret:
  secretName: {{ $noun }}-identity
  defaultMode: 0440
  items:
    - { key: tls.crt, path: {{ $noun }}.pem }
    - { key: tls.key, path: {{ $noun }}.key }
    - { key: ca.crt, path: ca.pem }
{{- else }}
secret: { secretName: {{ $noun }}-identity, defaultMode: 0440 }
{{- end }}
{{- end -}}

{{- define "braid.identity-args" -}}
- --cert=/run/braid/{{ . }}.pem
- --key=/run/braid/{{ . }}.key
- --ca=/run/braid/ca.pem
{{- end -}}

{{/* (list ROOT NOUN) */}}
{{- define "braid.process-args" -}}
{{- $root := index . 0 }}{{ $noun := index . 1 -}}
- --admin={{ include "braid.any" $root }}:{{ include "braid.admin" $noun }}
- --log={{ $root.Values.log }}
- --log-format=json
{{- with $root.Values.traces.endpoint }}
- --otlp-endpoint={{ . }}
- --trace-share={{ $root.Values.traces.share }}
{{- end }}
{{- end -}}

{{/* Where the certificate of who vouches for an engine is: (list NAME CA), CA as in `bus.ca`. */}}
{{- define "braid.ca-file" -}}
{{- $name := index . 0 }}{{ $ca := index . 1 -}}
{{- if gt (len (compact (list $ca.secret $ca.configMap (ternary "public" "" $ca.public)))) 1 }}{{ fail (printf "%s.ca: one of a Secret, a ConfigMap and public" $name) }}{{ end -}}
{{- if $ca.public }}/etc/ssl/certs/ca-certificates.crt
{{- else if or $ca.secret $ca.configMap }}/run/{{ $name }}/ca.crt
{{- else }}/run/braid/ca.pem
{{- end }}
{{- end -}}

{{/* (list ROOT NAME...): mounts and volumes of the same, for engines whose authority is another than the installation's. */}}
{{- define "braid.ca-mounts" -}}
{{- $root := first . }}
{{- range $name := rest . }}{{ $ca := (index $root.Values $name).ca }}
{{- if or $ca.secret $ca.configMap }}
- { name: {{ $name }}-ca, mountPath: /run/{{ $name }}, readOnly: true }
{{- end }}
{{- end }}
{{- end -}}
{{- define "braid.ca-volumes" -}}
{{- $root := first . }}
{{- range $name := rest . }}{{ $ca := (index $root.Values $name).ca }}
{{- if $ca.secret }}
- { name: {{ $name }}-ca, secret: { secretName: {{ $ca.secret | quote }}, defaultMode: 0440, items: [{ key: {{ $ca.key | quote }}, path: ca.crt }] } }
{{- else if $ca.configMap }}
- { name: {{ $name }}-ca, configMap: { name: {{ $ca.configMap | quote }}, items: [{ key: {{ $ca.key | quote }}, path: ca.crt }] } }
{{- end }}
{{- end }}
{{- end -}}

{{/* Without TLS only where the URL says so: the services refuse what was forgotten. */}}
{{- define "braid.store-url" -}}
{{- $url := .Values.store.url -}}
{{ $url }}{{ if not (or .Values.store.tls (contains "sslmode=" $url)) }}{{ ternary "&" "?" (contains "?" $url) }}sslmode=disable{{ end }}
{{- end -}}

{{- define "braid.store-args" -}}
- --store={{ include "braid.store-url" . }}
{{- if .Values.store.tls }}
- --store-ca={{ include "braid.ca-file" (list "store" .Values.store.ca) }}
{{- end }}
{{- if eq .Values.identities.source "secrets" }}
- --config=/run/braid/braid.toml
{{- end }}
{{- end -}}

{{/* (list ROOT NOUN) */}}
{{- define "braid.bus-args" -}}
{{- $bus := (index . 0).Values.bus }}{{ $noun := index . 1 -}}
{{- if gt (int $bus.inSyncMin) (int $bus.replication) }}{{ fail (printf "bus.inSyncMin: %v copies of %v are never in sync, so nothing could be published; at most bus.replication" $bus.inSyncMin $bus.replication) }}{{ end -}}
{{- if and $bus.user (not $bus.tls) }}{{ fail "bus.tls: the password of bus.user would travel in the clear, so bus.tls must be true" }}{{ end -}}
{{- if and $bus.user (not $bus.passwordSecret.name) }}{{ fail "bus.passwordSecret.name: the Secret with the password of bus.user, for example kafka-password" }}{{ end -}}
{{- if and $bus.passwordSecret.name (not $bus.user) }}{{ fail "bus.user: whose password is in bus.passwordSecret, for example braid" }}{{ end -}}
- --bus=kafka{{ if $bus.tls }}+tls{{ end }}://{{ with $bus.user }}{{ . }}@{{ end }}{{ $bus.brokers }}
{{- if $bus.tls }}
- --bus-ca={{ include "braid.ca-file" (list "bus" $bus.ca) }}
{{- if $bus.user }}
- --bus-sasl={{ $bus.sasl }}
{{- else }}
- --bus-cert=/run/braid/{{ $noun }}.pem
- --bus-key=/run/braid/{{ $noun }}.key
{{- end }}
{{- end }}
- --bus-replication={{ $bus.replication }}
- --bus-in-sync-min={{ $bus.inSyncMin }}
{{- if not $bus.createTopics }}
- --bus-no-create-topics
{{- end }}
{{- end -}}

{{/* Flags of who sends e-mail, each on a line of its own. */}}
{{- define "braid.mail-args" -}}
{{- with .Values.mail }}
{{- if .smtp }}
{{- if not .from }}{{ fail "mail.from: the sender of e-mails, for example Braid <braid@example.org>" }}{{ end }}
{{- if and .user (not .passwordSecret.name) }}{{ fail "mail.passwordSecret.name: the Secret with the password of mail.user" }}{{ end }}
--smtp={{ .smtp }}
--email-from={{ .from }}
{{- with .to }}
--email-to={{ join "," . }}
{{- end }}
{{- with .user }}
--smtp-user={{ . }}
{{- end }}
{{- else if or .from .to .user .passwordSecret.name }}{{ fail "mail.smtp: no server is given that the rest of mail is about, for example smtp://mail.example.org" }}
{{- end }}
{{- end }}
{{- end -}}

{{/* (list ROOT NOUN) */}}
{{- define "braid.passwords" -}}
{{- $root := index . 0 }}{{ $noun := index . 1 -}}
{{- $managed := eq $root.Values.identities.source "cert-manager" }}
{{- $enrols := and (eq $noun "dashboard") $root.Values.enrolment.authoritySecret }}
{{- $client := dict }}{{ $webhook := dict }}
{{- if eq $noun "dashboard" }}{{ $client = $root.Values.dashboard.oidc.clientSecret }}{{ $webhook = $root.Values.dashboard.canary.webhook }}{{ end }}
{{- $signs := and $root.Values.bus.user (has $noun (list "ingest" "alerting" "path-telemetry" "dashboard" "exchange")) }}
{{- $mail := dict }}
{{- if and $root.Values.mail.user (has $noun (list "alerting" "dashboard")) }}{{ $mail = $root.Values.mail.passwordSecret }}{{ end }}
{{- if or $managed $enrols $client.name $webhook.name $signs $mail.name }}
env:
{{- end }}
{{- if $webhook.name }}
  - name: BRAID_DASHBOARD_CANARY_WEBHOOK
    valueFrom: { secretKeyRef: { name: {{ $webhook.name | quote }}, key: {{ $webhook.key | quote }} } }
{{- end }}
{{- if $mail.name }}
  - name: BRAID_{{ $noun | upper }}_SMTP_PASSWORD
    valueFrom: { secretKeyRef: { name: {{ $mail.name | quote }}, key: {{ $mail.key | quote }} } }
{{- end }}
{{- if $signs }}
  - name: BRAID_{{ $noun | upper | replace "-" "_" }}_BUS_PASSWORD
    valueFrom: { secretKeyRef: { name: {{ $root.Values.bus.passwordSecret.name | quote }}, key: {{ $root.Values.bus.passwordSecret.key | quote }} } }
{{- end }}
{{- if $managed }}
  - name: BRAID_{{ $noun | upper | replace "-" "_" }}_STORE_PASSWORD
    valueFrom: { secretKeyRef: { name: {{ $root.Values.identities.passwordsSecret | quote }}, key: store } }
{{- if eq $noun "setup" }}
  - name: BRAID_SETUP_ADMIN_PASSWORD
    valueFrom: { secretKeyRef: { name: {{ $root.Values.identities.passwordsSecret | quote }}, key: administrator } }
{{- end }}
{{- end }}
{{- if $enrols }}
  # For `braid gateways` in this container, which makes tokens and revokes.
  - { name: BRAID_AUTHORITY, value: /run/authority }
  - { name: BRAID_STORE, value: {{ include "braid.store-url" $root | quote }} }
{{- if $root.Values.store.tls }}
  - { name: BRAID_STORE_CA, value: {{ include "braid.ca-file" (list "store" $root.Values.store.ca) }} }
{{- end }}
  - name: BRAID_STORE_PASSWORD
    valueFrom: { secretKeyRef: { name: {{ ternary $root.Values.identities.passwordsSecret "dashboard-identity" $managed | quote }}, key: store } }
{{- end }}
{{- with $client.name }}
  - name: BRAID_DASHBOARD_OIDC_SECRET
    valueFrom: { secretKeyRef: { name: {{ . | quote }}, key: {{ $client.key | quote }} } }
{{- end }}
{{- end -}}

{{/* Of every container: started when it answers, sent work when it is ready, restarted when it hangs. */}}
{{- define "braid.probes" -}}
startupProbe: { httpGet: { path: /healthz, port: admin }, periodSeconds: 1, failureThreshold: 60 }
readinessProbe: { httpGet: { path: /readyz, port: admin }, periodSeconds: 3, timeoutSeconds: 3 }
livenessProbe: { httpGet: { path: /healthz, port: admin }, periodSeconds: 10, timeoutSeconds: 3, failureThreshold: 6 }
{{- end -}}

{{/* (list ROOT NOUN): where pods go. */}}
{{- define "braid.placement" -}}
{{- $root := index . 0 -}}
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . | quote }}
{{- end }}
{{- end }}
{{- with $root.Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with $root.Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* (list ROOT NOUN): the same, and the pods of a noun apart from each other. */}}
{{- define "braid.placement-apart" -}}
{{- $root := index . 0 -}}
{{- include "braid.placement" . }}
{{- if $root.Values.topologySpread.enabled }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: {{ $root.Values.topologySpread.key }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector: { matchLabels: { {{ include "braid.selector" . | replace "\n" ", " }} } }
{{- end }}
{{- end -}}

{{/* (list ROOT NOUN) */}}
{{- define "braid.disruption-budget" -}}
{{- $root := index . 0 }}{{ $noun := index . 1 -}}
{{- if $root.Values.podDisruptionBudget.enabled }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $noun }}
  labels: {{ include "braid.labels" . | nindent 4 }}
spec:
  maxUnavailable: {{ $root.Values.podDisruptionBudget.maxUnavailable }}
  selector: { matchLabels: { {{ include "braid.selector" . | replace "\n" ", " }} } }
{{- end }}
{{- end -}}

{{/* (list ROOT NOUN): a network policy of the noun's pods up to its rules. */}}
{{- define "braid.policy" }}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ index . 1 }}
  labels: {{ include "braid.labels" . | nindent 4 }}
spec:
  podSelector: { matchLabels: { {{ include "braid.selector" . | replace "\n" ", " }} } }
  policyTypes: [Ingress, Egress]
{{- end -}}

{{/* Who may read metrics. Nobody is no rule, since a rule of no peers lets everybody in. */}}
{{- define "braid.watched" }}
{{- with .Values.networkPolicy.metricsFrom }}
    - from:
{{ toYaml . | indent 8 }}
      ports: [{ port: admin }]
{{- end }}
{{- end -}}

{{/* Where every process may go: names, and the collector of spans. */}}
{{- define "braid.everybody-asks" }}
    - ports: [{ port: 53, protocol: UDP }, { port: 53, protocol: TCP }]
{{- with .Values.traces.endpoint }}
    - ports: [{ port: {{ include "braid.port-of-url" . }} }]
{{- end }}
{{- end -}}

{{- define "braid.port-of-mail" -}}
{{ regexFind ":[0-9]+$" (index (splitList "/" .) 2) | trimPrefix ":" | default (ternary "465" "587" (hasPrefix "smtps:" .)) }}
{{- end -}}

{{- define "braid.port-of-url" -}}
{{ regexFind ":[0-9]+$" (index (splitList "/" .) 2) | trimPrefix ":" | default (ternary "443" "80" (hasPrefix "https:" .)) }}
{{- end -}}

{{/* Nouns: the peers of a network policy. */}}
{{- define "braid.from" }}
{{- range . }}
        - podSelector: { matchLabels: { app.kubernetes.io/part-of: braid, app.kubernetes.io/name: {{ . }} } }
{{- end }}
{{- end -}}

{{/* Where Kafka and TimescaleDB are, as the peers of a network policy. */}}
{{- define "braid.backends" }}
{{- if .Values.networkPolicy.backends }}
{{ toYaml .Values.networkPolicy.backends | indent 8 }}
{{- else }}
        - podSelector: {}
{{- end }}
{{- end -}}
