//! `zoneward drain-zone` and `zoneward undrain-zone`: creates a ZoneDrain, follows its status, and deletes it.
//!
//! ```text
//! flags -> ZoneDrain -> API -> controller: Accepted or not, with the Services that refuse
//!                        |-> slices -> nodes and proxies move traffic in ten steps
//! status <---------------+
//! ```

use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use clock::Clock;
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, PostParams};
use model::{Timestamp, annotation};
use serde_json::{Value, json};

use crate::cli::{Format, OutputArgs};
use cluster::signals::Signals;
use cluster::{Connection, ObjectKind};
use output::{count, print_text, print_value, render, table};

/// The share of traffic that a rehearsal moves.
const REHEARSED_PERCENT: u32 = 10;
/// Interval between looks at the status.
const POLL: Duration = Duration::from_millis(500);
/// How long a controller may take to decide.
const DECISION_TIMEOUT: Duration = Duration::from_secs(30);
/// A rehearsal lasts at least so long where traffic is measured: nodes report every half minute.
const REPORTS: Duration = Duration::from_secs(30);
/// What a check or a rehearsal outlives its command by at most.
const SHORT_LIFE: Duration = Duration::from_secs(120);

/// `zoneward drain-zone`
#[derive(Debug, Args)]
pub struct DrainZone {
    /// Zone, as in the label topology.kubernetes.io/zone of its nodes
    #[arg(value_name = "ZONE")]
    pub zone: String,
    /// Duration of the ten steps, or of a rehearsal
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = model::duration::parse)]
    pub over: Duration,
    /// Duration after which the drain ends by itself
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = model::duration::parse)]
    pub expires_in: Duration,
    /// Check whether the other zones can take the traffic, without moving it
    #[arg(long, conflicts_with = "rehearse")]
    pub dry_run: bool,
    /// Move 10 % of the traffic for the duration of --over, restore it, and report what a drain would break
    #[arg(long)]
    pub rehearse: bool,
    /// Drain although the other zones have not carried as much before
    #[arg(long)]
    pub force: bool,
    /// Exit once the drain is accepted, while traffic moves
    #[arg(long, conflicts_with_all = ["dry_run", "rehearse"])]
    pub no_wait: bool,
    #[command(flatten)]
    pub connection: Connection,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `zoneward undrain-zone`
#[derive(Debug, Args)]
pub struct UndrainZone {
    /// Zone
    #[arg(value_name = "ZONE")]
    pub zone: String,
    #[command(flatten)]
    pub connection: Connection,
}

type DrainApi = Api<DynamicObject>;

fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting")
}

pub fn drain(args: &DrainZone) -> Result<bool> {
    if args.over > Duration::from_secs(86_400) {
        bail!("--over {:?}: expected at most 24h", args.over);
    }
    if args.expires_in <= args.over {
        bail!("--expires-in must be longer than --over, or the drain ends before it is complete");
    }
    runtime()?.block_on(run(args))
}

async fn run(args: &DrainZone) -> Result<bool> {
    let clock = Clock::system();
    let (client, address) = cluster::open(&args.connection, &clock).await?;
    check_zone(&client, &args.zone).await.with_context(|| format!("the API at {address}"))?;
    let api: DrainApi = Api::all_with(client, &ObjectKind::ZoneDrain.resource());
    let name = object_name(args);
    let mut signals = Signals::listen()?;
    let object: DynamicObject = serde_json::from_value(zone_drain(args, &name, &clock))?;
    let created = api.create(&PostParams::default(), &object).await;
    match created {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 409 => bail!(
            "ZoneDrain {name} exists: `zoneward undrain-zone {}` ends it, `kubectl get zonedrain {name} -o yaml` shows it",
            args.zone
        ),
        Err(kube::Error::Api(status)) if status.code == 404 => bail!(
            "the API at {address} does not serve ZoneDrain: install deploy/crds/zonedrains.yaml, or upgrade the chart"
        ),
        Err(error) => return Err(error).context("creating the ZoneDrain"),
    }
    let followed = tokio::select! {
        biased;
        () = signals.wait() => None,
        followed = follow(&api, &name, args, &clock) => Some(followed),
    };
    let keeps = matches!(&followed, Some(Ok((_, true)))) && !args.dry_run && !args.rehearse;
    if !keeps {
        let deleted = api.delete(&name, &DeleteParams::default()).await;
        if let Err(error) = deleted
            && !matches!(&error, kube::Error::Api(status) if status.code == 404)
        {
            return Err(error).with_context(|| format!("deleting ZoneDrain {name}, which expires by itself"));
        }
    }
    let Some(followed) = followed else {
        bail!("aborted: the drain of zone {} was deleted, and its traffic returns", args.zone);
    };
    let (object, is_accepted) = followed?;
    match args.output.format {
        Format::Table => print_text(&report(args, &object, is_accepted))?,
        format => print_value(&object["status"], format)?,
    }
    Ok(is_accepted)
}

/// A name of its own for each, so that a check does not get in the way of a drain.
fn object_name(args: &DrainZone) -> String {
    let ending = if args.dry_run {
        "-check"
    } else if args.rehearse {
        "-rehearsal"
    } else {
        ""
    };
    format!("{}{ending}", args.zone.to_ascii_lowercase())
}

fn zone_drain(args: &DrainZone, name: &str, clock: &Clock) -> Value {
    let life = match args.dry_run || args.rehearse {
        true => args.over * u32::from(args.rehearse) + SHORT_LIFE,
        false => args.expires_in,
    };
    let now = Timestamp::from(clock.timestamp()).unix_seconds();
    let expires_at = Timestamp::from_seconds(now.saturating_add_unsigned(life.as_secs()));
    let mut spec = json!({"zone": args.zone, "expiresAt": expires_at.to_string()});
    spec["over"] = match args.rehearse {
        true => "0s".into(),
        false => format!("{}s", args.over.as_secs()).into(),
    };
    for (field, value) in [("dryRun", args.dry_run), ("force", args.force)] {
        if value {
            spec[field] = true.into();
        }
    }
    if args.rehearse {
        spec["percent"] = REHEARSED_PERCENT.into();
    }
    json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "ZoneDrain", "metadata": {"name": name}, "spec": spec})
}

async fn check_zone(client: &Client, zone: &str) -> Result<()> {
    let nodes: Api<DynamicObject> = Api::all_with(client.clone(), &ObjectKind::Node.resource());
    let nodes = nodes.list_metadata(&ListParams::default()).await.context("listing nodes")?;
    let labels = nodes.items.iter().filter_map(|node| node.metadata.labels.as_ref()?.get(annotation::ZONE));
    let mut zones: Vec<&str> = labels.map(String::as_str).collect();
    zones.sort_unstable();
    zones.dedup();
    if !zones.contains(&zone) {
        bail!("no node is in zone {zone:?}; the zones are: {}", zones.join(", "));
    }
    Ok(())
}

async fn read(api: &DrainApi, name: &str) -> Result<Value> {
    let object = api.get(name).await.with_context(|| format!("reading ZoneDrain {name}"))?;
    Ok(serde_json::to_value(object)?)
}

fn accepted(object: &Value) -> Option<(bool, &str)> {
    let conditions = object["status"]["conditions"].as_array()?;
    let condition = conditions.iter().find(|condition| condition["type"] == "Accepted")?;
    Some((condition["status"] == "True", condition["message"].as_str().unwrap_or_default()))
}

/// Waits for the decision, and for the traffic to move. Returns the object, and whether the drain was accepted.
async fn follow(api: &DrainApi, name: &str, args: &DrainZone, clock: &Clock) -> Result<(Value, bool)> {
    let start = clock.now();
    let object = loop {
        let object = read(api, name).await?;
        match accepted(&object) {
            Some((true, _)) => break object,
            Some((false, _)) => return Ok((object, false)),
            None if clock.since(start) > DECISION_TIMEOUT => bail!(
                "no controller decided on ZoneDrain {name} within {}s: check that zoneward controller runs and may watch \
                 zonedrains",
                DECISION_TIMEOUT.as_secs()
            ),
            None => tokio::time::sleep(POLL).await,
        }
    };
    if args.dry_run || args.no_wait {
        return Ok((object, true));
    }
    let is_quiet = args.output.format != Format::Table;
    let wait = match (args.rehearse, traffic(&object).is_some()) {
        (true, true) => args.over.max(REPORTS),
        (true, false) => args.over,
        (false, _) => args.over + DECISION_TIMEOUT,
    };
    let mut shown = None;
    loop {
        let object = read(api, name).await?;
        let moved = object["status"]["movedPercent"].as_u64().unwrap_or_default();
        if shown != Some(moved) && !is_quiet {
            let measured = traffic(&object)
                .map_or_else(String::new, |part| format!("; {part:.0} % of new connections go to the zone"));
            print_text(&format!("{moved:>3} % moved{measured}\n"))?;
            shown = Some(moved);
        }
        let is_complete = !args.rehearse && moved >= 100;
        if is_complete || clock.since(start) >= wait {
            return Ok((object, true));
        }
        tokio::time::sleep(POLL).await;
    }
}

/// The zone's part of new connections in percent; `None` where nothing is measured.
fn traffic(object: &Value) -> Option<f64> {
    let services = object["status"]["services"].as_array().into_iter().flatten();
    let figures = services.filter_map(|service| {
        Some((service["connectionsPerSecond"].as_f64()?, service["percentInZone"].as_f64()?))
    });
    let (sum, in_zone) =
        figures.fold((0.0, 0.0), |(sum, in_zone), (rate, part)| (sum + rate, in_zone + rate * part));
    (sum > 0.0).then(|| in_zone / sum)
}

fn report(args: &DrainZone, object: &Value, is_accepted: bool) -> String {
    let message = accepted(object).map(|(_, message)| message).unwrap_or_default();
    let mut text = String::new();
    let services: Vec<&Value> = object["status"]["services"].as_array().into_iter().flatten().collect();
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let number =
        |value: &Value, unit: &str| value.as_i64().map_or_else(|| "-".to_owned(), |n| format!("{n}{unit}"));
    if !services.is_empty() {
        let mut rows = table(&["SERVICE", "VERDICT", "CONNECTIONS/S", "TO ZONE", "WHY"]);
        for service in &services {
            rows.add_row([
                format!("{}/{}", word(&service["namespace"]), word(&service["name"])),
                word(&service["verdict"]),
                number(&service["connectionsPerSecond"], ""),
                number(&service["percentInZone"], " %"),
                word(&service["message"]),
            ]);
        }
        text += &render(&rows);
        text += "\n";
    }
    text += &format!("{message}.\n");
    let zone = &args.zone;
    let refused = services.iter().filter(|service| service["verdict"] == "Refused").count();
    text += &match (is_accepted, args.dry_run, args.rehearse) {
        (false, ..) => format!("Nothing was moved away from zone {zone}.\n"),
        (true, true, _) => {
            format!("A drain of zone {zone} would be accepted. Nothing was moved (--dry-run).\n")
        }
        (true, _, true) if refused > 0 => format!(
            "The rehearsal has ended, and the traffic returns. A drain of zone {zone} would be refused by {}.\n",
            count(refused, "Service")
        ),
        (true, _, true) => {
            format!(
                "The rehearsal has ended, and the traffic returns. A drain of zone {zone} would be accepted.\n"
            )
        }
        (true, ..) => format!(
            "Zone {zone} is drained until {}. `zoneward undrain-zone {zone}` ends it.\n",
            word(&object["spec"]["expiresAt"])
        ),
    };
    text
}

pub fn undrain(args: &UndrainZone) -> Result<bool> {
    runtime()?.block_on(async {
        let (client, address) = cluster::open(&args.connection, &Clock::system()).await?;
        let api: DrainApi = Api::all_with(client, &ObjectKind::ZoneDrain.resource());
        let listed = api.list(&ListParams::default()).await;
        let listed = listed.with_context(|| format!("listing ZoneDrains of the API at {address}"))?;
        let is_of_zone = |object: &&DynamicObject| object.data["spec"]["zone"] == args.zone.as_str();
        let names =
            listed.items.iter().filter(is_of_zone).filter_map(|object| object.metadata.name.as_deref());
        let names: Vec<&str> = names.collect();
        if names.is_empty() {
            bail!("no ZoneDrain is of zone {:?}: `kubectl get zonedrains` lists them", args.zone);
        }
        for name in names {
            api.delete(name, &DeleteParams::default())
                .await
                .with_context(|| format!("deleting ZoneDrain {name}"))?;
            print_text(&format!("ZoneDrain {name} deleted: the traffic of zone {} returns\n", args.zone))?;
        }
        Ok(true)
    })
}
