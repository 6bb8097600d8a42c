//! Good objects, with every field that parsing reads set somewhere.

use serde_json::{Value, json};

/// The world before it is broken.
pub fn objects() -> Vec<Value> {
    let mut objects = vec![service(), plain_service(), slice("IPv4", "10.1.0."), slice("IPv6", "fd00::")];
    objects.extend((1..6).map(pod));
    objects.extend(["node-a", "node-b"].map(node));
    objects.push(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ns",
        "annotations": {"zoneward.dev/default-traffic-distribution": "PreferSameZone"}}}));
    objects.push(json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
        "metadata": {"name": "kubernetes", "finalizers": ["networking.k8s.io/service-cidr-finalizer"]},
        "spec": {"cidrs": ["10.96.0.0/28", "fd00:96::/112"]},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]}}));
    objects.push(json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress",
        "metadata": {"name": "10.96.0.9", "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"ipaddress.kubernetes.io/ip-family": "IPv4",
                "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"}},
        "spec": {"parentRef": {"group": "", "resource": "services", "namespace": "ns", "name": "svc"}}}));
    objects.extend(routes());
    objects
}

/// Policies with every field somewhere, for the Services of this world.
fn routes() -> Vec<Value> {
    let policy = |kind: &str, name: &str, spec: Value| {
        json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": kind, "metadata": {"namespace": "ns", "name": name},
            "spec": spec})
    };
    let refs = json!([{"kind": "MeshServiceSubset", "name": "svc", "tags": {"app": "web"}, "port": 80, "weight": 90},
        {"kind": "MeshService", "name": "plain", "weight": 10}]);
    let headers =
        json!({"set": [{"name": "a", "value": "1"}], "add": [{"name": "b", "value": "2"}], "remove": ["c"]});
    let rules = json!([
        {"matches": [{"path": {"type": "Prefix", "value": "/v1"}, "method": "GET",
            "headers": [{"type": "RegularExpression", "name": "x", "value": "v[0-9]+"}, {"type": "Absent", "name": "y"}],
            "queryParams": [{"type": "Exact", "name": "q", "value": "1"}]}],
         "default": {"filters": [{"type": "RequestHeaderModifier", "requestHeaderModifier": headers},
            {"responseHeader": headers}, {"type": "URLRewrite", "urlRewrite": {"hostname": "a.io",
                "path": {"replacePrefixMatch": "/v2"}}},
            {"requestMirror": {"backendRef": {"kind": "MeshService", "name": "svc"}, "percentage": "0.5"}}],
            "backendRefs": refs}},
        {"matches": [{"path": {"regex": "/[a-z]+"}}, {"path": {"exact": "/e"}}],
         "default": {"filters": [{"requestRedirect": {"scheme": "https", "hostname": "b.io", "port": 8443,
            "statusCode": 301, "path": {"replaceFullPath": "/x"}}}]}},
        {"matches": [{"path": {"prefix": "/d"}}],
         "default": {"filters": [{"directResponse": {"status": 418, "body": {"inlineBytes": "aGVsbG8="}}}]}}]);
    let listeners = json!([{"name": "http", "port": 80, "protocol": "HTTP", "hostname": "*.a.io", "tags": {"t": "1"}},
        {"name": "tls", "port": 443, "protocol": "HTTPS", "tls": {"certificateRef": {"name": "cert"}}},
        {"name": "tls2", "port": 444, "protocol": "HTTPS", "tls": {"certificateRefs": [{"name": "rsa"}, {"name": "ec"}]}},
        {"name": "raw", "port": 90, "protocol": "TCP"}]);
    let tcp = json!([{"default": {"backendRefs": refs}}]);
    vec![
        policy(
            "MeshHTTPRoute",
            "r1",
            json!({"targetRef": {"kind": "MeshServiceSubset", "name": "svc",
            "tags": {"app": "web"}}, "to": [{"targetRef": {"kind": "MeshService", "name": "svc"}, "rules": rules}]}),
        ),
        policy(
            "MeshHTTPRoute",
            "r2",
            json!({"to": [{"targetRef": {"kind": "MeshService", "name": "svc"}, "rules": rules}]}),
        ),
        policy("MeshGateway", "edge", json!({"listeners": listeners})),
        policy(
            "MeshGatewayHTTPRoute",
            "g",
            json!({"targetRef": {"kind": "MeshGateway", "name": "edge"},
            "hostnames": ["x.a.io", "*.b.io"], "rules": rules}),
        ),
        policy(
            "MeshTCPRoute",
            "t",
            json!({"targetRef": {"kind": "Mesh"},
            "to": [{"targetRef": {"kind": "MeshService", "name": "plain"}, "rules": tcp}]}),
        ),
        policy("MeshRouteFilter", "subset", json!({"subset": {"tags": {"version": "v2"}}})),
        policy(
            "MeshRouteFilter",
            "n",
            json!({"directResponse": {"status": 418, "body": {"inlineString": "x"}}}),
        ),
        policy(
            "MeshLoadBalancing",
            "lb",
            json!({"targetRef": {"kind": "Mesh"}, "to": [{"targetRef": {"kind": "Mesh"}, "default": {
                "algorithm": {"type": "Maglev", "hashOn": {"type": "Header", "name": "x-user"}},
                "outlierDetection": {"consecutiveFailures": 3}, "panicThreshold": 40,
                "circuitBreakers": {"maxRequests": 9}, "retries": {"codes": [503], "budget": {"percent": 20}},
                "timeouts": {"connect": "1s", "request": "5s"}, "rateLimit": {"requests": 10},
                "faults": {"delay": {"duration": "5ms", "percentage": "0.5"}, "abort": {"status": 503}}}}]}),
        ),
        policy(
            "MeshTCPRoute",
            "tg",
            json!({"targetRef": {"kind": "MeshGateway", "name": "edge"},
            "to": [{"targetRef": {"kind": "Mesh"}, "rules": tcp}]}),
        ),
    ]
}

/// One object of every kind of the Gateway API, with most of its fields, and what they refer to.
pub fn standard() -> Vec<Value> {
    let object = |kind: &str, name: &str, spec: Value| {
        json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": kind, "metadata": {"namespace": "ns", "name": name,
            "generation": 2, "creationTimestamp": "2026-11-01T00:00:00Z"}, "spec": spec})
    };
    let refs = json!([{"name": "svc", "port": 80, "weight": 9, "filters": [{"type": "URLRewrite",
        "urlRewrite": {"hostname": "b.io"}}]}, {"group": "", "kind": "Service", "name": "plain", "namespace": "other", "port": 80}]);
    let headers =
        json!({"set": [{"name": "a", "value": "1"}], "add": [{"name": "b", "value": "2"}], "remove": ["c"]});
    let rules = json!([
        {"name": "r", "matches": [{"path": {"type": "PathPrefix", "value": "/v1/"}, "method": "GET",
            "headers": [{"type": "RegularExpression", "name": "x", "value": "a.*"}], "queryParams": [{"name": "q", "value": "1"}]}],
         "filters": [{"type": "RequestHeaderModifier", "requestHeaderModifier": headers},
            {"type": "ResponseHeaderModifier", "responseHeaderModifier": headers},
            {"type": "URLRewrite", "urlRewrite": {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/x"}}},
            {"type": "RequestMirror", "requestMirror": {"backendRef": {"name": "plain", "port": 80}, "fraction": {"numerator": 1, "denominator": 3}}},
            {"type": "CORS", "cors": {"allowOrigins": ["https://*.a.io", "*"], "allowMethods": ["*"], "maxAge": 3}}],
         "timeouts": {"request": "1s", "backendRequest": "500ms"}, "retry": {"codes": [503], "attempts": 2, "backoff": "1ms"},
         "backendRefs": refs},
        {"matches": [{"path": {"type": "Exact", "value": "/r"}}], "filters": [{"type": "RequestRedirect", "requestRedirect": {
            "scheme": "https", "port": 8443, "statusCode": 301, "path": {"type": "ReplaceFullPath", "replaceFullPath": "/n"}}}]},
        {"filters": [{"type": "ExtensionRef", "extensionRef": {"group": "zoneward.dev", "kind": "MeshRouteFilter", "name": "n"}}]},
    ]);
    let parents = json!([{"name": "std", "sectionName": "http", "port": 80}, {"kind": "ListenerSet", "name": "set"},
        {"group": "", "kind": "Service", "name": "svc", "port": 80}]);
    let route = |kind: &str, rules: Value| {
        object(kind, "std", json!({"parentRefs": parents, "hostnames": ["*.a.io", "x.a.io"], "rules": rules}))
    };
    let certificate = json!({"certificateRefs": [{"name": "cert", "namespace": "other"}]});
    let selector = json!({"from": "Selector", "selector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "k", "operator": "NotIn", "values": ["v"]}]}});
    let listeners = json!([
        {"name": "http", "port": 80, "protocol": "HTTP", "hostname": "*.a.io", "allowedRoutes": {"namespaces": {"from": "All"}, "kinds": [{"kind": "HTTPRoute"}]}},
        {"name": "https", "port": 443, "protocol": "HTTPS", "tls": certificate},
        {"name": "tls", "port": 443, "protocol": "TLS", "hostname": "t.a.io", "tls": {"mode": "Passthrough"}},
        {"name": "tcp", "port": 90, "protocol": "TCP"},
        {"name": "udp", "port": 90, "protocol": "UDP", "allowedRoutes": {"namespaces": selector}}]);
    vec![
        object("GatewayClass", "class", json!({"controllerName": "zoneward.dev/gateway"})),
        object(
            "Gateway",
            "std",
            json!({"gatewayClassName": "class", "listeners": listeners,
            "addresses": [{"type": "IPAddress", "value": "127.0.0.1"}], "allowedListeners": {"namespaces": {"from": "Same"}},
            "tls": {"frontend": {"default": {"validation": {"caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "ca"}]}}, "perPort": [{"port": 443, "tls": {}}]},
                "backend": {"clientCertificateRef": {"name": "cert"}}}}),
        ),
        object(
            "ListenerSet",
            "set",
            json!({"parentRef": {"name": "std"}, "listeners": [{"name": "http", "port": 80, "protocol": "HTTP", "hostname": "*.a.io"}]}),
        ),
        route("HTTPRoute", rules),
        route(
            "GRPCRoute",
            json!([{"matches": [{"method": {"service": "a.B", "method": "C"}}, {"method": {"type": "RegularExpression", "method": "C"}}], "backendRefs": refs}]),
        ),
        route("TLSRoute", json!([{"backendRefs": refs}])),
        route("TCPRoute", json!([{"backendRefs": refs}])),
        route("UDPRoute", json!([{"backendRefs": refs}])),
        object(
            "ReferenceGrant",
            "grant",
            json!({"from": [{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "namespace": "ns"}], "to": [{"group": "", "kind": "Service", "name": "plain"}]}),
        ),
        object(
            "BackendTLSPolicy",
            "tls",
            json!({"targetRefs": [{"group": "", "kind": "Service", "name": "svc", "sectionName": "http"}],
            "validation": {"hostname": "b.io", "subjectAltNames": [{"type": "URI", "uri": "spiffe://x"}], "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "ca"}]}}),
        ),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "ns", "name": "ca"}, "data": {"ca.crt": "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----"}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": "other", "name": "cert"}, "type": "kubernetes.io/tls", "data": {"tls.crt": "LS0t", "tls.key": "eA=="}}),
    ]
}

fn service() -> Value {
    json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "ns", "name": "svc", "uid": "6c3d1d2e-9a40-4f7e-8a55-0123456789ab",
            "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"app": "web"},
            "annotations": {"service.kubernetes.io/topology-mode": "Auto",
                "endpointslice.kubernetes.io/same-zone": "Prefer",
                "endpointslice.kubernetes.io/same-zone-starting-threshold": "4"}},
        "spec": {"type": "LoadBalancer", "selector": {"app": "web"}, "clusterIP": "10.96.0.9",
            "clusterIPs": ["10.96.0.9", "fd00:96::9"], "ipFamilies": ["IPv4", "IPv6"],
            "ipFamilyPolicy": "PreferDualStack", "internalTrafficPolicy": "Cluster",
            "externalTrafficPolicy": "Local", "healthCheckNodePort": 30100, "externalIPs": ["192.0.2.1"],
            "loadBalancerSourceRanges": ["10.0.0.0/8"], "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}}, "publishNotReadyAddresses": false,
            "trafficDistribution": "PreferSameZone",
            "ports": [
                {"name": "http", "port": 80, "targetPort": "http", "nodePort": 30080, "appProtocol": "http"},
                {"name": "dns", "port": 53, "protocol": "UDP", "targetPort": 5353}]},
        "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.1", "ipMode": "VIP"}, {"hostname": "lb"}]}}})
}

fn plain_service() -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "ns", "name": "plain"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}})
}

fn slice(family: &str, prefix: &str) -> Value {
    let endpoint = |i: usize| {
        json!({"addresses": [format!("{prefix}{i}")], "hostname": "h", "nodeName": "node-a", "zone": "zone-a",
            "conditions": {"ready": i != 2, "serving": true, "terminating": i == 2},
            "targetRef": {"kind": "Pod", "namespace": "ns", "name": format!("pod-{i}"), "uid": format!("uid-{i}")},
            "hints": {"forZones": [{"name": "zone-a"}], "forNodes": [{"name": "node-a"}]}})
    };
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family,
        "metadata": {"namespace": "ns", "name": format!("svc-{}", family.to_lowercase()), "generation": 2,
            "resourceVersion": "7", "annotations": {"zoneward.dev/mechanism": "Spill",
                "zoneward.dev/demand": "zone-a=128,zone-b=128"},
            "labels": {"app": "web", "kubernetes.io/service-name": "svc",
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": "svc",
                "uid": "6c3d1d2e-9a40-4f7e-8a55-0123456789ab", "controller": true}]},
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP", "appProtocol": "http"}],
        "endpoints": (1..4).map(endpoint).collect::<Vec<_>>()})
}

fn pod(i: usize) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "ns", "name": format!("pod-{i}"), "uid": format!("uid-{i}"), "labels": {"app": "web"}},
        "spec": {"nodeName": if i.is_multiple_of(2) { "node-a" } else { "node-b" }, "hostname": "h", "subdomain": "svc",
            "containers": [{"name": "c", "image": "i", "ports": [{"name": "http", "containerPort": 8080}]}],
            "initContainers": [{"name": "s", "image": "i", "restartPolicy": "Always",
                "ports": [{"name": "admin", "containerPort": 9, "protocol": "TCP"}]}]},
        "status": {"phase": "Running", "podIP": format!("10.1.0.{i}"),
            "podIPs": [{"ip": format!("10.1.0.{i}")}, {"ip": format!("fd00::{i}")}],
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}})
}

fn node(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": name.replace("node", "zone"),
            "topology.kubernetes.io/region": "r"}},
        "spec": {"podCIDRs": ["10.1.0.0/24"], "taints": [{"key": "k", "effect": "NoSchedule"}]},
        "status": {"allocatable": {"cpu": "1500m"}, "conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "InternalIP", "address": "192.168.0.1"}]}})
}
