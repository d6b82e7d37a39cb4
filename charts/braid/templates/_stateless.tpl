{{/*
One of the services that keep nothing: Deployment, Service, disruption budget, scaling.

(dict "root" $ "noun" NOUN "args" LIST of flags of its own "authoritySecret" what it signs with "provider" volume of who vouches for the
people's provider "group" consumer group and "topic" it lags on, for KEDA)
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
{{- with $root.Values.podAnnotations }}
      annotations: {{ toYaml . | nindent 8 }}
{{- end }}
    spec:
      automountServiceAccountToken: false
      enableServiceLinks: false
      terminationGracePeriodSeconds: 30
      securityContext: {{ include "braid.pod-security" . | nindent 8 }}
{{- include "braid.placement" $of | nindent 6 }}
      containers:
        - name: {{ $noun }}
          image: {{ include "braid.image" $root }}
          imagePullPolicy: {{ $root.Values.image.pullPolicy }}
          args:
            - {{ $noun }}
            - --listen=0.0.0.0:{{ include "braid.port" $noun }}
{{- include "braid.identity-args" $noun | nindent 12 }}
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
{{- if $values.rules }}
            - { name: rules, mountPath: /etc/braid, readOnly: true }
{{- end }}
{{- if .authoritySecret }}
            - { name: authority, mountPath: /run/authority, readOnly: true }
{{- end }}
{{- if .provider }}
            - { name: provider, mountPath: /run/provider, readOnly: true }
{{- end }}
      volumes:
        - {{ include "braid.identity-volume" $of | nindent 10 | trim }}
{{- if $values.rules }}
        - { name: rules, configMap: { name: {{ $noun }}-rules } }
{{- end }}
{{- if .authoritySecret }}
        - name: authority
          secret:
            secretName: {{ .authoritySecret }}
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
{{- if eq $values.autoscaling.by "cpu" }}
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
{{- if $root.Values.bus.tls }}
---
apiVersion: keda.sh/v1alpha1
kind: TriggerAuthentication
metadata:
  name: {{ $noun }}-bus
  labels: {{ include "braid.labels" $of | nindent 4 }}
spec:
  secretTargetRef:
{{- if eq $root.Values.identities.source "cert-manager" }}
    - { parameter: ca, name: {{ $noun }}-identity, key: ca.crt }
    - { parameter: cert, name: {{ $noun }}-identity, key: tls.crt }
    - { parameter: key, name: {{ $noun }}-identity, key: tls.key }
{{- else }}
    - { parameter: ca, name: {{ $noun }}-identity, key: ca.pem }
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
        lagThreshold: {{ $values.autoscaling.lagRecords | quote }}
        tls: {{ ternary "enable" "disable" $root.Values.bus.tls }}
{{- if $root.Values.bus.tls }}
      authenticationRef: { name: {{ $noun }}-bus }
{{- end }}
{{- end }}
{{- end -}}
