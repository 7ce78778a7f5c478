{{- define "batholith.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "batholith.api.scheme" -}}
{{- if .Values.api.tls.secretName -}}https{{- else -}}http{{- end -}}
{{- end -}}
