//! Messages of protobuf -> the types that `parse` takes: the kinds that a node reads by the thousand. Only the fields that
//! are parsed are decoded; the numbers are those of `generated.proto` in k8s.io/api and k8s.io/apimachinery.
//!
//! Empty lists and maps are not on the wire, so that they read as absent. Strings and numbers that Go writes although they
//! are zero mean the same as absent ones in every field that is decoded here.

use std::collections::BTreeMap;

use k8s_openapi::api::{core::v1 as core, discovery::v1 as discovery};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use k8s_openapi::jiff;

use crate::protobuf::wire::{FieldValue, WireError, WireFields};

type Decoded<T> = Result<T, WireError>;

/// Most elements of lists and maps in one object: an empty message has two bytes on the wire, and hundreds in memory.
const MAX_ELEMENTS: usize = 256 << 10;

/// Decodes one object. Its depth is that of the types.
pub(super) struct MessageDecoder {
    /// Elements that may follow.
    left: usize,
}

impl Default for MessageDecoder {
    fn default() -> Self {
        Self { left: MAX_ELEMENTS }
    }
}

impl MessageDecoder {
    /// Decodes every field with `put`; numbers that it does not know are skipped, as in every reader of protobuf.
    fn message<T: Default>(
        &mut self,
        bytes: &[u8],
        mut put: impl FnMut(&mut Self, &mut T, u64, FieldValue<'_>) -> Decoded<()>,
    ) -> Decoded<T> {
        let mut message = T::default();
        for field in WireFields::of(bytes) {
            let (number, value) = field?;
            put(self, &mut message, number, value)?;
        }
        Ok(message)
    }

    fn push<T>(&mut self, list: &mut Option<Vec<T>>, element: T) -> Decoded<()> {
        self.count()?;
        list.get_or_insert_default().push(element);
        Ok(())
    }

    fn count(&mut self) -> Decoded<()> {
        self.left = self.left.checked_sub(1).ok_or(WireError("an object has too many elements"))?;
        Ok(())
    }

    fn insert<T>(&mut self, map: &mut Option<BTreeMap<String, T>>, (key, value): (String, T)) -> Decoded<()> {
        self.count()?;
        map.get_or_insert_default().insert(key, value);
        Ok(())
    }

    pub(super) fn service(&mut self, bytes: &[u8]) -> Decoded<core::Service> {
        self.message(bytes, |this, object: &mut core::Service, number, value| {
            match number {
                1 => object.metadata = this.object_meta(value.bytes()?)?,
                2 => object.spec = Some(this.service_spec(value.bytes()?)?),
                3 => object.status = Some(this.service_status(value.bytes()?)?),
                _ => {}
            }
            Ok(())
        })
    }

    fn service_spec(&mut self, bytes: &[u8]) -> Decoded<core::ServiceSpec> {
        self.message(bytes, |this, spec: &mut core::ServiceSpec, number, value| {
            match number {
                1 => {
                    let port = this.service_port(value.bytes()?)?;
                    this.push(&mut spec.ports, port)?;
                }
                2 => this.insert(&mut spec.selector, text_entry(value)?)?,
                3 => spec.cluster_ip = text(value)?,
                4 => spec.type_ = text(value)?,
                5 => this.push(&mut spec.external_ips, owned(value)?)?,
                7 => spec.session_affinity = text(value)?,
                9 => this.push(&mut spec.load_balancer_source_ranges, owned(value)?)?,
                10 => spec.external_name = text(value)?,
                11 => spec.external_traffic_policy = text(value)?,
                12 => spec.health_check_node_port = Some(value.int32()?),
                13 => spec.publish_not_ready_addresses = Some(value.number()? != 0),
                14 => spec.session_affinity_config = Some(this.session_affinity_config(value.bytes()?)?),
                17 => spec.ip_family_policy = text(value)?,
                18 => this.push(&mut spec.cluster_ips, owned(value)?)?,
                19 => this.push(&mut spec.ip_families, owned(value)?)?,
                22 => spec.internal_traffic_policy = text(value)?,
                23 => spec.traffic_distribution = text(value)?,
                _ => {}
            }
            Ok(())
        })
    }

    fn service_port(&mut self, bytes: &[u8]) -> Decoded<core::ServicePort> {
        self.message(bytes, |_, port: &mut core::ServicePort, number, value| {
            match number {
                1 => port.name = text(value)?,
                2 => port.protocol = text(value)?,
                3 => port.port = value.int32()?,
                4 => port.target_port = Some(int_or_string(value.bytes()?)?),
                5 => port.node_port = Some(value.int32()?),
                6 => port.app_protocol = text(value)?,
                _ => {}
            }
            Ok(())
        })
    }

    fn session_affinity_config(&mut self, bytes: &[u8]) -> Decoded<core::SessionAffinityConfig> {
        self.message(bytes, |this, config: &mut core::SessionAffinityConfig, number, value| {
            if number == 1 {
                config.client_ip = Some(this.client_ip_config(value.bytes()?)?);
            }
            Ok(())
        })
    }

    fn client_ip_config(&mut self, bytes: &[u8]) -> Decoded<core::ClientIPConfig> {
        self.message(bytes, |_, config: &mut core::ClientIPConfig, number, value| {
            if number == 1 {
                config.timeout_seconds = Some(value.int32()?);
            }
            Ok(())
        })
    }

    fn service_status(&mut self, bytes: &[u8]) -> Decoded<core::ServiceStatus> {
        self.message(bytes, |this, status: &mut core::ServiceStatus, number, value| {
            match number {
                1 => status.load_balancer = Some(this.load_balancer_status(value.bytes()?)?),
                2 => {
                    let condition = condition(value.bytes()?)?;
                    this.push(&mut status.conditions, condition)?;
                }
                _ => {}
            }
            Ok(())
        })
    }

    fn load_balancer_status(&mut self, bytes: &[u8]) -> Decoded<core::LoadBalancerStatus> {
        self.message(bytes, |this, status: &mut core::LoadBalancerStatus, number, value| {
            if number == 1 {
                let ingress = this.ingress(value.bytes()?)?;
                this.push(&mut status.ingress, ingress)?;
            }
            Ok(())
        })
    }

    fn ingress(&mut self, bytes: &[u8]) -> Decoded<core::LoadBalancerIngress> {
        self.message(bytes, |_, ingress: &mut core::LoadBalancerIngress, number, value| {
            match number {
                1 => ingress.ip = text(value)?,
                3 => ingress.ip_mode = text(value)?,
                _ => {}
            }
            Ok(())
        })
    }

    pub(super) fn slice(&mut self, bytes: &[u8]) -> Decoded<discovery::EndpointSlice> {
        self.message(bytes, |this, slice: &mut discovery::EndpointSlice, number, value| {
            match number {
                1 => slice.metadata = this.object_meta(value.bytes()?)?,
                2 => {
                    let endpoint = this.endpoint(value.bytes()?)?;
                    this.push(&mut slice.endpoints, endpoint)?;
                }
                3 => {
                    let port = this.endpoint_port(value.bytes()?)?;
                    this.push(&mut slice.ports, port)?;
                }
                4 => slice.address_type = owned(value)?,
                _ => {}
            }
            Ok(())
        })
    }

    fn endpoint(&mut self, bytes: &[u8]) -> Decoded<discovery::Endpoint> {
        self.message(bytes, |this, endpoint: &mut discovery::Endpoint, number, value| {
            match number {
                1 => {
                    this.count()?;
                    endpoint.addresses.push(owned(value)?);
                }
                2 => endpoint.conditions = Some(this.endpoint_conditions(value.bytes()?)?),
                3 => endpoint.hostname = text(value)?,
                4 => endpoint.target_ref = Some(this.object_reference(value.bytes()?)?),
                6 => endpoint.node_name = text(value)?,
                7 => endpoint.zone = text(value)?,
                8 => endpoint.hints = Some(this.hints(value.bytes()?)?),
                _ => {}
            }
            Ok(())
        })
    }

    fn endpoint_conditions(&mut self, bytes: &[u8]) -> Decoded<discovery::EndpointConditions> {
        self.message(bytes, |_, conditions: &mut discovery::EndpointConditions, number, value| {
            match number {
                1 => conditions.ready = Some(value.number()? != 0),
                2 => conditions.serving = Some(value.number()? != 0),
                3 => conditions.terminating = Some(value.number()? != 0),
                _ => {}
            }
            Ok(())
        })
    }

    fn object_reference(&mut self, bytes: &[u8]) -> Decoded<core::ObjectReference> {
        self.message(bytes, |_, reference: &mut core::ObjectReference, number, value| {
            match number {
                1 => reference.kind = text(value)?,
                2 => reference.namespace = text(value)?,
                3 => reference.name = text(value)?,
                4 => reference.uid = text(value)?,
                _ => {}
            }
            Ok(())
        })
    }

    fn hints(&mut self, bytes: &[u8]) -> Decoded<discovery::EndpointHints> {
        self.message(bytes, |this, hints: &mut discovery::EndpointHints, number, value| {
            match number {
                1 => {
                    let name = wrapped_text(value.bytes()?)?;
                    this.push(&mut hints.for_zones, discovery::ForZone { name })?;
                }
                2 => {
                    let name = wrapped_text(value.bytes()?)?;
                    this.push(&mut hints.for_nodes, discovery::ForNode { name })?;
                }
                _ => {}
            }
            Ok(())
        })
    }

    fn endpoint_port(&mut self, bytes: &[u8]) -> Decoded<discovery::EndpointPort> {
        self.message(bytes, |_, port: &mut discovery::EndpointPort, number, value| {
            match number {
                1 => port.name = text(value)?,
                2 => port.protocol = text(value)?,
                3 => port.port = Some(value.int32()?),
                4 => port.app_protocol = text(value)?,
                _ => {}
            }
            Ok(())
        })
    }

    pub(super) fn node(&mut self, bytes: &[u8]) -> Decoded<core::Node> {
        self.message(bytes, |this, node: &mut core::Node, number, value| {
            match number {
                1 => node.metadata = this.object_meta(value.bytes()?)?,
                2 => node.spec = Some(this.node_spec(value.bytes()?)?),
                3 => node.status = Some(this.node_status(value.bytes()?)?),
                _ => {}
            }
            Ok(())
        })
    }

    fn node_spec(&mut self, bytes: &[u8]) -> Decoded<core::NodeSpec> {
        self.message(bytes, |this, spec: &mut core::NodeSpec, number, value| {
            match number {
                1 => spec.pod_cidr = text(value)?,
                3 => spec.provider_id = text(value)?,
                5 => {
                    // The key of the taint; its other fields are not read.
                    let key = wrapped_text(value.bytes()?)?;
                    this.push(&mut spec.taints, core::Taint { key, ..core::Taint::default() })?;
                }
                7 => this.push(&mut spec.pod_cidrs, owned(value)?)?,
                _ => {}
            }
            Ok(())
        })
    }

    fn node_status(&mut self, bytes: &[u8]) -> Decoded<core::NodeStatus> {
        self.message(bytes, |this, status: &mut core::NodeStatus, number, value| {
            match number {
                2 => this.insert(&mut status.allocatable, quantity_entry(value)?)?,
                4 => {
                    let (type_, text) = two_texts(value.bytes()?)?;
                    let condition =
                        core::NodeCondition { type_, status: text, ..core::NodeCondition::default() };
                    this.push(&mut status.conditions, condition)?;
                }
                5 => {
                    let (type_, address) = two_texts(value.bytes()?)?;
                    this.push(&mut status.addresses, core::NodeAddress { type_, address })?;
                }
                _ => {}
            }
            Ok(())
        })
    }

    fn object_meta(&mut self, bytes: &[u8]) -> Decoded<meta::ObjectMeta> {
        self.message(bytes, |this, meta: &mut meta::ObjectMeta, number, value| {
            match number {
                1 => meta.name = text(value)?,
                3 => meta.namespace = text(value)?,
                5 => meta.uid = text(value)?,
                6 => meta.resource_version = text(value)?,
                7 => meta.generation = Some(value.number()?),
                8 => meta.creation_timestamp = time(value)?,
                9 => meta.deletion_timestamp = time(value)?,
                11 => this.insert(&mut meta.labels, text_entry(value)?)?,
                12 => this.insert(&mut meta.annotations, text_entry(value)?)?,
                13 => {
                    let owner = owner_reference(value.bytes()?)?;
                    this.push(&mut meta.owner_references, owner)?;
                }
                17 => {
                    let entry = this.managed_fields_entry(value.bytes()?)?;
                    this.push(&mut meta.managed_fields, entry)?;
                }
                _ => {}
            }
            Ok(())
        })
    }

    fn managed_fields_entry(&mut self, bytes: &[u8]) -> Decoded<meta::ManagedFieldsEntry> {
        self.message(bytes, |_, entry: &mut meta::ManagedFieldsEntry, number, value| {
            match number {
                1 => entry.manager = text(value)?,
                4 => entry.time = time(value)?,
                _ => {}
            }
            Ok(())
        })
    }
}

fn owner_reference(bytes: &[u8]) -> Decoded<meta::OwnerReference> {
    let mut owner = meta::OwnerReference::default();
    for field in WireFields::of(bytes) {
        match field? {
            (1, value) => owner.kind = owned(value)?,
            (3, value) => owner.name = owned(value)?,
            (4, value) => owner.uid = owned(value)?,
            (5, value) => owner.api_version = owned(value)?,
            _ => {}
        }
    }
    Ok(owner)
}

/// Its time is not read, and has no default.
fn condition(bytes: &[u8]) -> Decoded<meta::Condition> {
    let mut condition = meta::Condition {
        last_transition_time: meta::Time(jiff::Timestamp::UNIX_EPOCH),
        message: String::new(),
        observed_generation: None,
        reason: String::new(),
        status: String::new(),
        type_: String::new(),
    };
    for field in WireFields::of(bytes) {
        match field? {
            (1, value) => condition.type_ = owned(value)?,
            (2, value) => condition.status = owned(value)?,
            (5, value) => condition.reason = owned(value)?,
            (6, value) => condition.message = owned(value)?,
            _ => {}
        }
    }
    Ok(condition)
}

fn owned(value: FieldValue<'_>) -> Decoded<String> {
    value.text().map(str::to_owned)
}

fn text(value: FieldValue<'_>) -> Decoded<Option<String>> {
    owned(value).map(Some)
}

/// The string that is the first field of a message.
fn wrapped_text(bytes: &[u8]) -> Decoded<String> {
    two_texts(bytes).map(|(first, _)| first)
}

/// The strings that are the first two fields of a message.
fn two_texts(bytes: &[u8]) -> Decoded<(String, String)> {
    let (mut first, mut second) = ("", "");
    for field in WireFields::of(bytes) {
        match field? {
            (1, value) => first = value.text()?,
            (2, value) => second = value.text()?,
            _ => {}
        }
    }
    Ok((first.to_owned(), second.to_owned()))
}

/// An entry of a map of strings.
fn text_entry(value: FieldValue<'_>) -> Decoded<(String, String)> {
    two_texts(value.bytes()?)
}

/// An entry of a map of quantities, which are messages around a string.
fn quantity_entry(value: FieldValue<'_>) -> Decoded<(String, Quantity)> {
    let (mut key, mut quantity) = ("", Quantity::default());
    for field in WireFields::of(value.bytes()?) {
        match field? {
            (1, value) => key = value.text()?,
            (2, value) => quantity = Quantity(wrapped_text(value.bytes()?)?),
            _ => {}
        }
    }
    Ok((key.to_owned(), quantity))
}

fn int_or_string(bytes: &[u8]) -> Decoded<IntOrString> {
    let (mut is_text, mut number, mut text) = (false, 0, "");
    for field in WireFields::of(bytes) {
        match field? {
            (1, value) => is_text = value.number()? == 1,
            (2, value) => number = value.int32()?,
            (3, value) => text = value.text()?,
            _ => {}
        }
    }
    Ok(if is_text { IntOrString::String(text.to_owned()) } else { IntOrString::Int(number) })
}

/// Seconds since 1970; an empty message is no time. Fractions of seconds are not in JSON either.
fn time(value: FieldValue<'_>) -> Decoded<Option<meta::Time>> {
    let bytes = value.bytes()?;
    if bytes.is_empty() {
        return Ok(None);
    }
    let mut seconds = 0;
    for field in WireFields::of(bytes) {
        if let (1, value) = field? {
            seconds = value.number()?;
        }
    }
    let time = jiff::Timestamp::from_second(seconds).map_err(|_| WireError("a time out of range"))?;
    Ok(Some(meta::Time(time)))
}
