//! What a client should know though its object was accepted; sent as Warning headers.

use serde_json::Value;

use crate::kinds::ResourceKind;
use crate::meta::at;

/// Everything to warn about in a write of an object.
pub(crate) fn warnings(kind: &ResourceKind, object: &Value) -> Vec<String> {
    if kind.kind != "Service" || !kind.group.is_empty() {
        return Vec::new();
    }
    let mut warnings = Vec::new();
    // KEP-4444: PreferClose lives on as PreferSameZone.
    if at(object, "spec.trafficDistribution") == "PreferClose" {
        warnings.push(
            "spec.trafficDistribution: PreferClose is deprecated; PreferSameZone means the same".to_owned(),
        );
    }
    if at(object, "spec.loadBalancerIP").as_str().is_some_and(|ip| !ip.is_empty()) {
        warnings
            .push("spec.loadBalancerIP is deprecated: use an annotation of your load balancer".to_owned());
    }
    // KEP-5707
    if at(object, "spec.externalIPs").as_array().is_some_and(|ips| !ips.is_empty()) {
        warnings.push(
            "spec.externalIPs is deprecated since Kubernetes 1.36: use type LoadBalancer or a Gateway"
                .to_owned(),
        );
    }
    if at(object, "spec.type") == "ExternalName" && at(object, "spec.clusterIP") == "None" {
        warnings.push("spec.clusterIP is ignored when spec.type is \"ExternalName\"".to_owned());
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds;
    use serde_json::json;

    // KEP-4444: PreferClose is deprecated in favour of PreferSameZone.
    #[test]
    fn prefer_close_gets_a_deprecation_warning() {
        let services = kinds::find("", "v1", "services").unwrap();
        let warned = |value: &str| warnings(services, &json!({"spec": {"trafficDistribution": value}})).len();
        assert_eq!(warned("PreferClose"), 1);
        assert_eq!(warned("PreferSameZone"), 0);
        assert_eq!(warned("zoneward.dev/Spill"), 0);
    }

    // KEP-5707
    #[test]
    fn external_ips_get_a_deprecation_warning() {
        let services = kinds::find("", "v1", "services").unwrap();
        let warned = |ips: Value| warnings(services, &json!({"spec": {"externalIPs": ips}})).len();
        assert_eq!((warned(json!(["192.0.2.1"])), warned(json!([])), warned(Value::Null)), (1, 0, 0));
    }
}
