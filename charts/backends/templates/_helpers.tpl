{{/* (list ROOT NAME) */}}
{{- define "backends.labels" -}}
app.kubernetes.io/name: {{ index . 1 }}
app.kubernetes.io/part-of: braid-backends
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
{{- end -}}

{{/* (list ROOT SIZE) */}}
{{- define "backends.volume" -}}
metadata: { name: data }
spec:
  accessModes: [ReadWriteOnce]
{{- with (index . 0).Values.storageClass }}
  storageClassName: {{ . }}
{{- end }}
  resources: { requests: { storage: {{ index . 1 }} } }
{{- end -}}
