{{/* The image of every role. */}}
{{- define "zoneward.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{- $isIptables := and .Values.node.enabled (eq (.Values.node.config.mode | toString) "iptables") -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default (printf "%s%s" .Chart.AppVersion (ternary "-iptables" "" $isIptables)) }}
{{- end -}}
{{- end }}

{{/* Whether the node proxy runs the programs of iptables: in its mode, and to remove the chains after a change of the mode. */}}
{{- define "zoneward.runsIptables" -}}
{{- or (eq (.Values.node.config.mode | toString) "iptables") (hasSuffix "-iptables" .Values.image.tag) -}}
{{- end }}

{{/* Labels of every object; `name` is the component. Helm itself adds app.kubernetes.io/managed-by. */}}
{{- define "zoneward.labels" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/part-of: zoneward
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
{{- end }}

{{/* Labels of pods; a selector has only the first. */}}
{{- define "zoneward.podLabels" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/part-of: zoneward
{{- with .labels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Security context of pods that need no privilege. */}}
{{- define "zoneward.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* Security context of containers that need no privilege. */}}
{{- define "zoneward.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Where pods run: `values` has nodeSelector, tolerations, affinity, topologySpreadConstraints. */}}
{{- define "zoneward.placement" -}}
{{- with .values.priorityClassName -}}
priorityClassName: {{ . }}
{{ end -}}
{{- with .values.nodeSelector -}}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{ end -}}
{{- with .values.tolerations -}}
tolerations:
{{- toYaml . | nindent 0 }}
{{ end -}}
{{- with .values.affinity -}}
affinity:
  {{- toYaml . | nindent 2 }}
{{ end -}}
topologySpreadConstraints:
{{- with .values.topologySpreadConstraints }}
{{- toYaml . | nindent 0 }}
{{- else }}
{{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
- maxSkew: 1
  topologyKey: {{ . }}
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      app.kubernetes.io/name: {{ $.name }}
{{- end }}
{{- end }}
{{- end }}

{{- define "zoneward.pullSecrets" -}}
{{- with .Values.image.pullSecrets -}}
imagePullSecrets:
{{- range . }}
- name: {{ . }}
{{- end }}
{{- end -}}
{{- end }}

{{/* Annotations that Prometheus' usual configuration for pods reads, and those of the values. */}}
{{- define "zoneward.podAnnotations" -}}
prometheus.io/scrape: "true"
prometheus.io/port: {{ .port | quote }}
{{- if not .root.Values.metrics.plainHTTP }}
prometheus.io/scheme: https
{{- end }}
{{- with .annotations }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Health checks of the admin server on the port named metrics. */}}
{{- define "zoneward.probes" -}}
livenessProbe:
  httpGet: {path: /livez, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: {{ .readyEvery }}
  timeoutSeconds: 5
{{- end }}

{{/* Rules of an account that asks the API who may read its metrics. */}}
{{- define "zoneward.metricsRules" -}}
{{- if not .Values.metrics.plainHTTP }}
# Whose token reads the metrics, and whether that account may.
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews]
  verbs: [create]
- apiGroups: [authorization.k8s.io]
  resources: [subjectaccessreviews]
  verbs: [create]
{{- end }}
{{- end }}

{{/* Rights of nodes and proxies to report their traffic. */}}
{{- define "zoneward.ledgerRules" -}}
{{- if not .Values.metrics.plainHTTP }}
# Where the leading controller is, and reports of traffic to it.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [zoneward-controller]
  verbs: [get]
- nonResourceURLs: [/ledger]
  verbs: [post]
{{- end }}
{{- end }}

{{/* Lease of the leading controller, as a flag of those who report traffic; empty if there is none. */}}
{{- define "zoneward.controllerLease" -}}
{{- if not .Values.metrics.plainHTTP -}}
{{ .Release.Namespace }}/zoneward-controller
{{- end -}}
{{- end }}

{{/* Ingress rule of the metrics port. */}}
{{- define "zoneward.metricsIngress" -}}
- ports:
  - {protocol: TCP, port: metrics}
  {{- with .Values.networkPolicy.metricsFrom }}
  from:
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* PreferSameZone where the API server knows it. */}}
{{- define "zoneward.preferSameZone" -}}
{{- if semverCompare ">=1.34-0" .Capabilities.KubeVersion.Version -}}
trafficDistribution: PreferSameZone
{{- end -}}
{{- end }}

{{- define "zoneward.leaseNamespace" -}}
{{ .Values.node.leaseNamespace | default .Release.Namespace }}
{{- end }}

{{/* The namespace of the Leases, unless it is an existing one. The controller and the nodes need it, whichever comes first. */}}
{{- define "zoneward.ownLeaseNamespace" -}}
{{- $leases := include "zoneward.leaseNamespace" . }}
{{- if and (eq $leases "zoneward-node-lease") (ne $leases .Release.Namespace) }}
# Leases in which nodes report what they have programmed, apart from those of leaders.
apiVersion: v1
kind: Namespace
metadata:
  name: {{ $leases }}
  labels:
    {{- include "zoneward.labels" (dict "root" . "name" "zoneward") | nindent 4 }}
  annotations:
    # A namespace takes a while to end, and an install right after an uninstall would adopt it in between.
    helm.sh/resource-policy: keep
---
{{- end }}
{{- end }}

{{/* A gateway with its defaults, as YAML. */}}
{{- define "zoneward.gateway" -}}
{{- $defaults := dict
  "namespace" "default"
  "proxy" "embedded"
  "secrets" (list)
  "configMaps" (list)
  "replicas" 2
  "bindAddress" "0.0.0.0"
  "metricsPort" 10271
  "drain" "45s"
  "accessLog" "-"
  "terminationGracePeriodSeconds" 60
  "service" (dict "type" "LoadBalancer")
  "resources" (dict "requests" (dict "cpu" "100m" "memory" "32Mi") "limits" (dict "memory" "512Mi"))
  "podDisruptionBudget" (dict "enabled" true "maxUnavailable" 1) -}}
{{- if eq (.proxy | default "embedded") "envoy" -}}
{{- $_ := set $defaults "resources" (dict "requests" (dict "cpu" "100m" "memory" "128Mi") "limits" (dict "memory" "1Gi")) -}}
{{- end -}}
{{- mergeOverwrite $defaults (deepCopy .) | toYaml -}}
{{- end }}

{{/* Security context of a gateway's pods. The sysctl is a safe one: it needs no capability and no setting of the kubelet. */}}
{{- define "zoneward.gatewaySecurity" -}}
{{ include "zoneward.podSecurity" . }}
{{- $low := false }}
{{- range .ports }}
{{- if lt (int (.containerPort | default .port)) 1024 }}{{ $low = true }}{{ end }}
{{- end }}
{{- if $low }}
# A listener has a port below 1024, and the process is not root.
sysctls:
- {name: net.ipv4.ip_unprivileged_port_start, value: "0"}
{{- end }}
{{- end }}

{{/* A definition, with the annotation that keeps it. */}}
{{- define "zoneward.definition" -}}
{{- if .root.Values.crds.install -}}
{{- $text := .root.Files.Get .file -}}
{{- if .root.Values.crds.keep -}}
{{- $text = $text | replace "\nmetadata:\n" "\nmetadata:\n  annotations:\n    helm.sh/resource-policy: keep\n" -}}
{{- end -}}
{{ $text }}
{{- end -}}
{{- end }}

{{/* A duration such as 1m30s in milliseconds. */}}
{{- define "zoneward.milliseconds" -}}
{{- $units := dict "ms" 1 "s" 1000 "m" 60000 "h" 3600000 -}}
{{- $sum := 0.0 -}}
{{- range regexFindAll "[0-9]+(\\.[0-9]+)?(ms|s|m|h)" . -1 -}}
{{- $unit := regexFind "(ms|s|m|h)$" . -}}
{{- $sum = addf $sum (mulf (trimSuffix $unit . | float64) (get $units $unit)) -}}
{{- end -}}
{{- int64 $sum -}}
{{- end }}

{{/* Refuses timing that the controller refuses at start. */}}
{{- define "zoneward.checkController" -}}
{{- $lease := include "zoneward.milliseconds" .leaderElection.leaseDuration | int64 -}}
{{- $renew := include "zoneward.milliseconds" .leaderElection.renewDeadline | int64 -}}
{{- $retry := include "zoneward.milliseconds" .leaderElection.retryPeriod | int64 -}}
{{- $path := "controller.leaderElection" -}}
{{- if le $lease $renew -}}
{{- fail (printf "%s.leaseDuration: %s must be longer than renewDeadline, which is %s: otherwise two replicas could lead" $path .leaderElection.leaseDuration .leaderElection.renewDeadline) -}}
{{- end -}}
{{- if lt $renew (mul 2 $retry) -}}
{{- fail (printf "%s.renewDeadline: %s must be at least twice retryPeriod, which is %s: otherwise one failed renewal ends leadership" $path .leaderElection.renewDeadline .leaderElection.retryPeriod) -}}
{{- end -}}
{{- if or (lt $lease 1000) (eq $retry 0) -}}
{{- fail (printf "%s: leaseDuration must be at least 1s, and retryPeriod not zero" $path) -}}
{{- end -}}
{{- end }}

{{/* Refuses values with which the node proxy could not work. */}}
{{- define "zoneward.checkNode" -}}
{{- $host := .Values.node.apiServer.host -}}
{{- $how := "the node proxy makes cluster IPs work, so it needs an address of the API server that does not depend on a Service; use the host of `server` in kube-proxy's kubeconfig (kubectl -n kube-system get configmap kube-proxy -o yaml | grep server:)" -}}
{{- if not $host -}}
{{- fail (printf "node.apiServer.host is required with node.enabled: %s" $how) -}}
{{- end -}}
{{- if or (eq $host "kubernetes") (hasPrefix "kubernetes.default" $host) -}}
{{- fail (printf "node.apiServer.host: %s is a Service: %s" $host $how) -}}
{{- end -}}
{{- if contains "/" $host -}}
{{- fail (printf "node.apiServer.host: %s is a URL; set the host alone, such as api.example or 10.0.0.1, and the port in node.apiServer.port" $host) -}}
{{- end -}}
{{- if not (regexMatch "^[A-Za-z0-9.:-]+$" $host) -}}
{{- fail (printf "node.apiServer.host: %s is neither a host name nor an IP address; write IPv6 addresses without brackets" $host) -}}
{{- end -}}
{{- if regexMatch "^[^:]+:[0-9]+$" $host -}}
{{- fail (printf "node.apiServer.host: %s contains a port; set node.apiServer.port" $host) -}}
{{- end -}}
{{- if dig "clientConnection" "kubeconfig" "" .Values.node.config -}}
{{- fail "node.config.clientConnection.kubeconfig: not supported in the chart, the pod uses its ServiceAccount; remove it" -}}
{{- end -}}
{{- if and .Values.node.ipvsDummyInterface (ne (.Values.node.config.mode | toString) "ipvs") -}}
{{- fail "node.ipvsDummyInterface: only with node.config.mode ipvs; set that mode, or remove it" -}}
{{- end -}}
{{- end }}

{{/* KubeProxyConfiguration of the node proxy. */}}
{{- define "zoneward.nodeConfig" -}}
{{- $config := deepCopy .Values.node.config -}}
{{- $_ := set $config "apiVersion" "kubeproxy.config.k8s.io/v1alpha1" -}}
{{- $_ := set $config "kind" "KubeProxyConfiguration" -}}
{{- if not $config.clusterCIDR }}{{ $_ := unset $config "clusterCIDR" }}{{ end -}}
{{- $_ := set $config "logging" (merge (deepCopy ($config.logging | default dict)) (dict "format" .Values.logFormat)) -}}
{{- toYaml $config -}}
{{- end }}

{{/* Port of healthzBindAddress; nothing if it is disabled. */}}
{{- define "zoneward.nodeHealthPort" -}}
{{- if hasKey .Values.node.config "healthzBindAddress" -}}
{{- regexFind "[0-9]+$" .Values.node.config.healthzBindAddress -}}
{{- else -}}
10256
{{- end -}}
{{- end }}

{{/* Whether oomScoreAdj is below what the kubelet sets: -997 for system-node-critical, at least 2 for others. */}}
{{- define "zoneward.lowersOomScore" -}}
{{- $held := ternary -997 2 (eq .Values.node.priorityClassName "system-node-critical") -}}
{{- lt (int (dig "oomScoreAdj" -999 .Values.node.config)) $held -}}
{{- end }}

{{/* The Secrets of a gateway's listeners: read by the proxy or the xDS server, and by the controller, which reports in the
gateway's status whether they can be used. Without the right, ResolvedRefs is Unknown. */}}
{{- define "zoneward.gatewaySecrets" -}}
{{- $labels := include "zoneward.labels" (dict "root" .root "name" .name) }}
{{- if or .gateway.secrets .gateway.configMaps }}
---
# The Secrets of the gateway's listeners, and its ConfigMaps of certificate authorities. The controller reads them to report
# in its status whether they can be used.
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ .name }}
  namespace: {{ .gateway.namespace }}
  labels:
    {{- $labels | nindent 4 }}
rules:
{{- with .gateway.secrets }}
- apiGroups: [""]
  resources: [secrets]
  resourceNames:
  {{- toYaml . | nindent 2 }}
  verbs: [list, watch]
{{- end }}
{{- with .gateway.configMaps }}
- apiGroups: [""]
  resources: [configmaps]
  resourceNames:
  {{- toYaml . | nindent 2 }}
  verbs: [list, watch]
{{- end }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ .name }}
  namespace: {{ .gateway.namespace }}
  labels:
    {{- $labels | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ .name }}
subjects:
- kind: ServiceAccount
  name: {{ .account }}
  namespace: {{ .namespace }}
{{- if .root.Values.controller.enabled }}
- kind: ServiceAccount
  name: zoneward-controller
  namespace: {{ .root.Release.Namespace }}
{{- end }}
{{- end }}
{{- end }}

{{/* Service, disruption budget and network policy of a gateway. */}}
{{- define "zoneward.gatewayAround" -}}
{{- $ := . }}
{{- $labels := include "zoneward.labels" (dict "root" .root "name" .name) }}
{{- with .gateway }}
---
apiVersion: v1
kind: Service
metadata:
  name: {{ $.name }}
  namespace: {{ .namespace }}
  labels:
    {{- $labels | nindent 4 }}
    # The addresses of a Gateway of the Gateway API are those of this Service.
    gateway.networking.k8s.io/gateway-name: {{ .name }}
  {{- with .service.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  type: {{ .service.type }}
  {{- with .service.externalTrafficPolicy }}
  externalTrafficPolicy: {{ . }}
  {{- end }}
  {{- with include "zoneward.preferSameZone" $.root }}
  {{- . | nindent 2 }}
  {{- end }}
  selector:
    app.kubernetes.io/name: {{ $.name }}
  ports:
  {{- range .ports }}
  - name: {{ .name }}
    port: {{ .port }}
    targetPort: {{ .name }}
    {{- with .nodePort }}
    nodePort: {{ . }}
    {{- end }}
  {{- end }}
{{- if .podDisruptionBudget.enabled }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $.name }}
  namespace: {{ .namespace }}
  labels:
    {{- $labels | nindent 4 }}
spec:
  maxUnavailable: {{ .podDisruptionBudget.maxUnavailable }}
  selector:
    matchLabels:
      app.kubernetes.io/name: {{ $.name }}
{{- end }}
{{- if $.root.Values.networkPolicy.enabled }}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ $.name }}
  namespace: {{ .namespace }}
  labels:
    {{- $labels | nindent 4 }}
spec:
  podSelector:
    matchLabels:
      app.kubernetes.io/name: {{ $.name }}
  policyTypes: [Ingress]
  ingress:
  - ports:
    {{- range .ports }}
    - {protocol: TCP, port: {{ .name }}}
    {{- end }}
  {{- if $.metrics }}
  {{- include "zoneward.metricsIngress" $.root | nindent 2 }}
  {{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Ports and times of a gateway with the embedded proxy. */}}
{{- define "zoneward.checkEmbeddedGateway" -}}
{{- $gateway := .gateway -}}
{{- $where := printf "mesh.gateways: gateway %s" .name -}}
{{- range $gateway.ports -}}
{{- if eq (int (.containerPort | default .port)) (int $gateway.metricsPort) -}}
{{- fail (printf "%s: port %s has containerPort %d, which the proxy uses for health checks and metrics; choose another one, or set metricsPort" $where .name (int $gateway.metricsPort)) -}}
{{- end -}}
{{- if eq .name "metrics" -}}
{{- fail (printf "%s: the port name metrics is taken by health checks and metrics; choose another one" $where) -}}
{{- end -}}
{{- end -}}
{{- $needed := add 5000 (include "zoneward.milliseconds" $gateway.drain | int64) -}}
{{- if ge $needed (mul 1000 (int $gateway.terminationGracePeriodSeconds)) -}}
{{- fail (printf "%s: terminationGracePeriodSeconds is %d, which must be longer than drain, %s, plus the 5 s before it: otherwise the kubelet kills the proxy while connections drain" $where (int $gateway.terminationGracePeriodSeconds) $gateway.drain) -}}
{{- end -}}
{{- end }}

{{/* Gateways that cannot work. Called with the root. */}}
{{- define "zoneward.checkGateways" -}}
{{- if and .Values.mesh.gateways (not .Values.mesh.enabled) -}}
{{- fail "mesh.gateways: there are gateways, but mesh.enabled is false; set it to true or remove them" -}}
{{- end -}}
{{- $gateways := dict -}}
{{- range .Values.mesh.gateways -}}
{{- $gateway := printf "%s/%s" (.namespace | default "default") .name -}}
{{- $proxy := .proxy | default "embedded" -}}
{{- if eq (get $gateways $gateway) $proxy -}}
{{- fail (printf "mesh.gateways: %s occurs twice with proxy %s; one row has all ports of a gateway" $gateway $proxy) -}}
{{- end -}}
{{- $_ := set $gateways $gateway $proxy -}}
{{- $ports := dict -}}
{{- if eq $proxy "embedded" -}}
{{- include "zoneward.checkEmbeddedGateway" (dict "gateway" (include "zoneward.gateway" . | fromYaml) "name" $gateway) -}}
{{- end -}}
{{- range .ports -}}
{{- range $what := list (printf "name %s" .name) (printf "port %v" .port) -}}
{{- if hasKey $ports $what -}}
{{- fail (printf "mesh.gateways: gateway %s has two ports with %s" $gateway $what) -}}
{{- end -}}
{{- $_ := set $ports $what true -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}
