//! The annotations of slices on the shares of their endpoints, from Pods, the Service and drains.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use model::{Labels, Name, Notice, ObjectRef, Pod, Service, SliceContent, annotation};

use super::{WHOLE, Warming, format_thousandths, parse_capacity, parse_slow_start};
use crate::drain::ZoneDrains;
use crate::slices::Packing;

/// Reason of the Notice about `zoneward.dev/capacity`.
pub const BAD_CAPACITY: &str = "InvalidCapacity";
/// Reason of the Notice about `zoneward.dev/slow-start`.
pub const BAD_SLOW_START: &str = "InvalidSlowStart";

const KEYS: [&str; 3] = [annotation::CAPACITY, annotation::DRAIN, annotation::WARMING];

/// Sets the annotations of all slices of a packing by its capacities and the rest; those that have them stay unchanged. Drains that are not known stay as
/// they are stored.
pub fn annotate(service: &Service, pods: &[&Pod], drains: Option<&ZoneDrains>, packing: &mut Packing<'_>) {
    let capacities = std::mem::take(&mut packing.capacities);
    let slow_start = slow_start(service).unwrap_or(None);
    let known_drain = drains.map(|drains| drains.annotation(service));
    let drain = |content: &SliceContent| match &known_drain {
        Some(drain) => drain.clone(),
        None => content.annotation(annotation::DRAIN).cloned(),
    };
    let is_plain =
        capacities.is_empty() && slow_start.is_none() && known_drain.as_ref().is_none_or(Option::is_none);
    let warming = slow_start.map(|duration| warming_endpoints(duration, pods));
    let wanted = |content: &SliceContent| -> [Option<Name>; 3] {
        let warming = warming.as_ref().map(|warming| of_slice(warming, content));
        let warming = warming.filter(|warming| !warming.since_by_address.is_empty());
        let warming = warming.map(|warming| Name::new(&warming.format()));
        [capacity_text(content, &capacities), drain(content), warming]
    };
    // What warmed up long ago may stay in a slice until it is written.
    let is_covered = |content: &SliceContent, [capacity, drain, _]: [Option<Name>; 3]| {
        let stored = Warming::parse(content.annotation(annotation::WARMING)?)?;
        let wanted = of_slice(warming.as_ref()?, content);
        let has = |(ip, since): (&IpAddr, &i64)| stored.since_by_address.get(ip) == Some(since);
        let others_fit = content.annotation(annotation::CAPACITY) == capacity.as_ref()
            && content.annotation(annotation::DRAIN) == drain.as_ref();
        (others_fit && stored.seconds == wanted.seconds && wanted.since_by_address.iter().all(has))
            .then_some(())
    };
    let planned = packing.updates.iter_mut().map(|(_, content)| content);
    for content in packing.creates.iter_mut().chain(planned) {
        let wanted = wanted(content);
        set(content, wanted);
    }
    for slice in std::mem::take(&mut packing.unchanged) {
        let is_right = || {
            let wanted = wanted(&slice.content);
            has(&slice.content, &wanted) || is_covered(&slice.content, wanted).is_some()
        };
        if is_plain && !slice.has_shares() || is_right() {
            packing.unchanged.push(slice);
            continue;
        }
        let mut content = slice.content.clone();
        let wanted = wanted(&content);
        set(&mut content, wanted);
        packing.updates.push((slice.key.name.clone(), content));
    }
}

/// About values that cannot be read.
pub fn notices(service: &Service, pods: &[&Pod]) -> Vec<Notice> {
    let mut notices = Vec::new();
    let is_wrong = |pod: &&&Pod| pod.capacity().is_some_and(|text| parse_capacity(text).is_none());
    let wrong: Vec<&&Pod> = pods.iter().filter(is_wrong).collect();
    if let Some(first) = wrong.first() {
        let more = match wrong.len() - 1 {
            0 => String::new(),
            more => format!(" ({more} more)"),
        };
        let message = format!(
            "Pod {} has {}: {:?}, which counts as 1: expected a number from 0.01 to 100 with up to three decimal \
             places{more}",
            first.key.name,
            annotation::CAPACITY,
            first.capacity().map(Name::as_str).unwrap_or_default(),
        );
        notices.push(Notice::new(ObjectRef::service(&service.key), BAD_CAPACITY, message));
    }
    if slow_start(service).is_err() {
        let text = service.annotation(annotation::SLOW_START).map(Name::as_str).unwrap_or_default();
        let message = format!(
            "{}: {text:?} is ignored: expected a duration from 1s to 1h, such as 60s",
            annotation::SLOW_START
        );
        notices.push(Notice::new(ObjectRef::service(&service.key), BAD_SLOW_START, message));
    }
    notices
}

/// `zoneward.dev/slow-start` of a Service; an error if it cannot be read.
fn slow_start(service: &Service) -> Result<Option<Duration>, ()> {
    let Some(text) = service.annotation(annotation::SLOW_START) else { return Ok(None) };
    let duration = parse_slow_start(text).ok_or(())?;
    Ok(Some(duration).filter(|duration| !duration.is_zero()))
}

/// Capacities of Pods by address, in thousandths, if they are not 1.
pub fn capacities(pods: &[&Pod]) -> BTreeMap<IpAddr, u32> {
    let capacity = |pod: &&Pod| parse_capacity(pod.capacity()?).filter(|capacity| *capacity != WHOLE);
    let pods = pods.iter().filter_map(|pod| Some((*pod, capacity(pod)?)));
    let addresses = pods.flat_map(|(pod, capacity)| {
        pod.ips.iter().flat_map(|ips| ips.iter()).map(move |address| (address, capacity))
    });
    addresses.collect()
}

fn capacity_text(content: &SliceContent, capacities: &BTreeMap<IpAddr, u32>) -> Option<Name> {
    if capacities.is_empty() {
        return None;
    }
    let addresses = content.endpoints.iter().map(|endpoint| endpoint.addresses.first());
    let mut pairs: Vec<(IpAddr, u32)> =
        addresses.filter_map(|address| Some((address, *capacities.get(&address)?))).collect();
    pairs.sort_unstable();
    pairs.dedup();
    let pairs = pairs.iter().map(|(ip, capacity)| format!("{ip}={}", format_thousandths((*capacity).into())));
    let text = pairs.collect::<Vec<_>>().join(",");
    (!text.is_empty()).then(|| Name::new(&text))
}

/// Ready endpoints, with the times since when they are. Those that were ready long before the youngest are warm: they are
/// compared with it, so that planning needs no clock.
fn warming_endpoints(duration: Duration, pods: &[&Pod]) -> Warming {
    let ready =
        pods.iter().filter_map(|pod| Some((pod, pod.ready_since.filter(|_| pod.ready)?.unix_seconds())));
    let ready: Vec<(IpAddr, i64)> = ready
        .flat_map(|(pod, since)| pod.ips.iter().flat_map(|ips| ips.iter()).map(move |ip| (ip, since)))
        .collect();
    let youngest = ready.iter().map(|(_, since)| *since).max().unwrap_or_default();
    let seconds = duration.as_secs();
    let recent = ready.into_iter().filter(|(_, since)| youngest - *since < seconds as i64);
    Warming { seconds, since_by_address: recent.collect() }
}

/// Those of one slice.
fn of_slice(warming: &Warming, content: &SliceContent) -> Warming {
    let addresses = content.endpoints.iter().map(|endpoint| endpoint.addresses.first());
    let since = addresses.filter_map(|ip| Some((ip, *warming.since_by_address.get(&ip)?)));
    Warming { seconds: warming.seconds, since_by_address: since.collect() }
}

fn has(content: &SliceContent, wanted: &[Option<Name>; 3]) -> bool {
    KEYS.iter().zip(wanted).all(|(key, wanted)| content.annotation(key) == wanted.as_ref())
}

fn set(content: &mut SliceContent, wanted: [Option<Name>; 3]) {
    if has(content, &wanted) {
        return;
    }
    let others = content.annotations.iter().filter(|(key, _)| !KEYS.contains(&key.as_str())).cloned();
    let ours = KEYS.iter().zip(wanted).filter_map(|(key, value)| Some((Name::new(key), value?)));
    content.annotations = Labels::from_pairs(others.chain(ours).collect());
}
