{{/*
One of the services that keep nothing: Deployment, Service, disruption budget, scaling.

(dict "root" $ "noun" NOUN "args" LIST of flags of its own "authoritySecret" what it signs with "provider" volume of who vouches for the
people's provider "hospital" Secret of the hospital's feed "group" consumer group and "topic" it lags on, for KEDA)
*/}}
{{- define "braid.stateless" -}}
{{- $root := .root }}{{ $noun := .noun }}{{ $values := index $root.Values $noun }}{{ $of := list $root $noun -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $noun }}
  labels: {{ include "braid.labels" $of | nindent 4 }}
spec:
{{- if eq $values.autoscaling.by "none" }}
  replicas: {{ $values.replicas }}
{{- end }}
  selector: { matchLabels: { {{ include "braid.selector" $of | replace "\n" ", " }} } }
  # A new pod is ready before an old one goes.
  strategy: { rollingUpdate: { maxSurge: 1, maxUnavailable: 0 } }
  template:
    metadata:
      labels: {{ include "braid.labels" $of | nindent 8 }}
{{- $annotations := $root.Values.podAnnotations }}
{{- with $values.rules }}
{{- /* Read once, at the start. */}}
{{- $annotations = merge (dict "checksum/rules" (sha256sum .)) $annotations }}
{{- end }}
{{- with $annotations }}
      annotations: {{ toYaml . | nindent 8 }}
{{- end }}
    spec:
      automountServiceAccountToken: false
      enableServiceLinks: false
      terminationGracePeriodSeconds: 30
      securityContext: {{ include "braid.pod-security" . | nindent 8 }}
{{- include "braid.placement-apart" $of | nindent 6 }}
      containers:
        - name: {{ $noun }}
          image: {{ include "braid.image" $root }}
          imagePullPolicy: {{ $root.Values.image.pullPolicy }}
          args:
            - {{ $noun }}
            - --listen={{ include "braid.any" $root }}:{{ include "braid.port" $noun }}
{{- if not .hospital }}
{{- include "braid.identity-args" $noun | nindent 12 }}
{{- end }}
{{- include "braid.bus-args" $of | nindent 12 }}
{{- include "braid.store-args" $root | nindent 12 }}
{{- include "braid.process-args" $of | nindent 12 }}
{{- range concat .args $values.extraArgs }}
            - {{ . | quote }}
{{- end }}
{{- include "braid.passwords" $of | nindent 10 }}
          ports:
            - { name: serve, containerPort: {{ include "braid.port" $noun }} }
            - { name: admin, containerPort: {{ include "braid.admin" $noun }} }
{{- include "braid.probes" . | nindent 10 }}
          # Endpoints forget the pod first, then it drains.
          lifecycle: { preStop: { sleep: { seconds: 5 } } }
          securityContext: {{ include "braid.container-security" . | nindent 12 }}
          resources: {{ toYaml $values.resources | nindent 12 }}
          volumeMounts:
            - { name: identity, mountPath: /run/braid, readOnly: true }
{{- include "braid.ca-mounts" (list $root "bus" "store") | nindent 12 }}
{{- if $values.rules }}
            - { name: rules, mountPath: /etc/braid, readOnly: true }
{{- end }}
{{- if .authoritySecret }}
            - { name: authority, mountPath: /run/authority, readOnly: true }
{{- end }}
{{- if .provider }}
            - { name: provider, mountPath: /run/provider, readOnly: true }
{{- end }}
{{- if .hospital }}
            - { name: hospital, mountPath: /run/hospital, readOnly: true }
{{- end }}
      volumes:
        - {{ include "braid.identity-volume" $of | nindent 10 | trim }}
{{- include "braid.ca-volumes" (list $root "bus" "store") | nindent 8 }}
{{- if $values.rules }}
        - { name: rules, configMap: { name: {{ $noun }}-rules } }
{{- end }}
{{- if .authoritySecret }}
        - name: authority
          secret:
            secretName: {{ .authoritySecret | quote }}
            defaultMode: 0440
{{- if eq $root.Values.enrolment.authority "gateways" }}
            # Without a `ca.key`, should there be one.
            items: [{ key: gateways.pem, path: gateways.pem }, { key: gateways.key, path: gateways.key }, { key: ca.pem, path: ca.pem }]
{{- else if eq $root.Values.identities.source "cert-manager" }}
            items: [{ key: tls.crt, path: ca.pem }, { key: tls.key, path: ca.key }]
{{- else }}
            items: [{ key: ca.pem, path: ca.pem }, { key: ca.key, path: ca.key }]
{{- end }}
{{- end }}
{{- with .provider }}
        - name: provider
{{ toYaml . | indent 10 }}
{{- end }}
{{- with .hospital }}
        - { name: hospital, secret: { secretName: {{ . | quote }}, defaultMode: 0440 } }
{{- end }}
---
apiVersion: v1
kind: Service
metadata:
  name: {{ $noun }}
  labels: {{ include "braid.labels" $of | nindent 4 }}
spec:
  # Envoy and the services see each pod and choose themselves.
  clusterIP: None
  selector: {{ include "braid.selector" $of | nindent 4 }}
  ports:
    - { name: serve, port: {{ include "braid.port" $noun }}, targetPort: serve, appProtocol: https }
    - { name: admin, port: {{ include "braid.admin" $noun }}, targetPort: admin }
{{- include "braid.disruption-budget" $of }}
{{- if and (ne $values.autoscaling.by "none") (gt (int $values.replicas) (int $values.autoscaling.replicasMax)) }}{{ fail (printf "%s.autoscaling.replicasMax: %v is below %s.replicas, the fewest: at least %v" $noun $values.autoscaling.replicasMax $noun $values.replicas) }}{{ end }}
{{- if eq $values.autoscaling.by "cpu" }}
{{- if not (dig "requests" "cpu" "" $values.resources) }}{{ fail (printf "%s.autoscaling.by: cpu is a share of what is asked for, so %s.resources.requests.cpu must be given, for example 250m" $noun $noun) }}{{ end }}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: {{ $noun }}
  labels: {{ include "braid.labels" $of | nindent 4 }}
spec:
  scaleTargetRef: { apiVersion: apps/v1, kind: Deployment, name: {{ $noun }} }
  minReplicas: {{ $values.replicas }}
  maxReplicas: {{ $values.autoscaling.replicasMax }}
  metrics:
    - type: Resource
      resource: { name: cpu, target: { type: Utilization, averageUtilization: {{ $values.autoscaling.cpuPercent }} } }
  # Every change moves partitions between consumers.
  behavior: { scaleDown: { stabilizationWindowSeconds: 600 } }
{{- else if eq $values.autoscaling.by "lag" }}
{{- if not .group }}{{ fail (printf "%s.autoscaling.by: lag is for services that consume a topic as a group: ingest, alerting, path-telemetry" $noun) }}{{ end }}
{{- if $root.Values.bus.user }}{{ fail (printf "%s.autoscaling.by: lag is not for a bus.user, whose name KEDA takes from a Secret only; a ScaledObject of your own can, with %s.autoscaling.by none" $noun $noun) }}{{ end }}
{{- if $root.Values.bus.tls }}
{{- $ca := $root.Values.bus.ca }}
---
apiVersion: keda.sh/v1alpha1
kind: TriggerAuthentication
metadata:
  name: {{ $noun }}-bus
  labels: {{ include "braid.labels" $of | nindent 4 }}
spec:
{{- with $ca.configMap }}
  configMapTargetRef:
    - { parameter: ca, name: {{ . | quote }}, key: {{ $ca.key | quote }} }
{{- end }}
  secretTargetRef:
{{- if $ca.secret }}
    - { parameter: ca, name: {{ $ca.secret | quote }}, key: {{ $ca.key | quote }} }
{{- else if not (or $ca.public $ca.configMap) }}
    - { parameter: ca, name: {{ $noun }}-identity, key: {{ ternary "ca.crt" "ca.pem" (eq $root.Values.identities.source "cert-manager") }} }
{{- end }}
{{- if eq $root.Values.identities.source "cert-manager" }}
    - { parameter: cert, name: {{ $noun }}-identity, key: tls.crt }
    - { parameter: key, name: {{ $noun }}-identity, key: tls.key }
{{- else }}
    - { parameter: cert, name: {{ $noun }}-identity, key: {{ $noun }}.pem }
    - { parameter: key, name: {{ $noun }}-identity, key: {{ $noun }}.key }
{{- end }}
{{- end }}
---
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata:
  name: {{ $noun }}
  labels: {{ include "braid.labels" $of | nindent 4 }}
spec:
  scaleTargetRef: { name: {{ $noun }} }
  minReplicaCount: {{ $values.replicas }}
  maxReplicaCount: {{ $values.autoscaling.replicasMax }}
  cooldownPeriod: 600
  triggers:
    - type: kafka
      metadata:
        bootstrapServers: {{ $root.Values.bus.brokers }}
        consumerGroup: {{ .group }}
        topic: {{ .topic }}
        lagThreshold: {{ int64 $values.autoscaling.lagRecords | quote }}
        tls: {{ ternary "enable" "disable" $root.Values.bus.tls }}
{{- if $root.Values.bus.tls }}
      authenticationRef: { name: {{ $noun }}-bus }
{{- end }}
{{- end }}
{{- end -}}
