//! The Services: sorted, searched, by pages. Only the rows of one page are rendered.

use std::cmp::Ordering;

use crate::status::{ServiceStatus, StatusReport};
use output::html::escaped;

use crate::pages::query::{QueryPairs, link};
use crate::pages::table::{TableColumn, TableOrder, anchor, copyable, pager, share_bar, table};
use crate::pages::target::service_link;
use crate::pages::units::{amount, count, maybe, percent, sentence, size};
use crate::pages::{NavEntry, Page, PageFragment};

const ROWS: usize = 50;

/// What the table is sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServiceSort {
    /// The order of the report: by avoidable cost.
    #[default]
    Avoidable,
    Cost,
    Across,
    Measured,
    Planned,
    Overload,
    Name,
    Mechanism,
}

const SORTS: &[(ServiceSort, &str, &str)] = &[
    (ServiceSort::Avoidable, "avoidable", "avoidable cost"),
    (ServiceSort::Cost, "cost", "cost"),
    (ServiceSort::Across, "across", "bytes across zones"),
    (ServiceSort::Measured, "measured", "measured in zone"),
    (ServiceSort::Planned, "planned", "planned in zone"),
    (ServiceSort::Overload, "overload", "overload"),
    (ServiceSort::Name, "name", "name"),
    (ServiceSort::Mechanism, "mechanism", "mechanism"),
];

impl ServiceSort {
    fn key(self) -> &'static str {
        SORTS.iter().find(|(sort, _, _)| *sort == self).map_or("", |(_, key, _)| key)
    }

    /// Numbers are best seen from the top, names and shares in zone from the bottom.
    fn is_descending(self) -> bool {
        !matches!(self, Self::Name | Self::Mechanism | Self::Measured | Self::Planned)
    }
}

/// Parameters of the page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServicesQuery {
    pub search: String,
    pub sort: ServiceSort,
    /// Against the usual direction of the sort.
    pub reversed: bool,
    /// From 0.
    pub page: usize,
}

impl ServicesQuery {
    pub(crate) fn parse(pairs: &QueryPairs) -> Self {
        let sort = pairs.value("sort").unwrap_or_default();
        let page = pairs.value("page").and_then(|text| text.parse::<usize>().ok()).unwrap_or(1);
        Self {
            search: pairs.value("q").unwrap_or_default().to_lowercase(),
            sort: SORTS.iter().find(|(_, key, _)| *key == sort).map_or_else(ServiceSort::default, |s| s.0),
            reversed: pairs.value("reverse") == Some("1"),
            page: page.saturating_sub(1).min(1_000_000),
        }
    }

    pub(crate) fn link(&self) -> String {
        let sort = if self.sort == ServiceSort::default() { "" } else { self.sort.key() };
        let page = if self.page == 0 { String::new() } else { (self.page + 1).to_string() };
        let reverse = if self.reversed { "1" } else { "" };
        link("/services", &[("q", &self.search), ("sort", sort), ("reverse", reverse), ("page", &page)])
    }

    fn matches(&self, service: &ServiceStatus) -> bool {
        let wanted = self.search.as_str();
        let has = |text: &str| text.to_lowercase().contains(wanted);
        wanted.is_empty()
            || service.name.contains(wanted)
            || service.namespace.contains(wanted)
            || (wanted.contains('/') && service.key().contains(wanted))
            || has(&service.mechanism)
            || (wanted == "not honored" && !service.honored)
    }

    fn order(&self, a: &ServiceStatus, b: &ServiceStatus) -> Ordering {
        // Services without a figure are last in both directions.
        let number = |a: Option<f64>, b: Option<f64>| match (a, b) {
            (Some(a), Some(b)) => {
                let up = a.total_cmp(&b);
                if self.sort.is_descending() != self.reversed { up.reverse() } else { up }
            }
            (a, b) => b.is_some().cmp(&a.is_some()),
        };
        let text = |a: &str, b: &str| if self.reversed { b.cmp(a) } else { a.cmp(b) };
        let by_key =
            |a: &ServiceStatus, b: &ServiceStatus| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name));
        match self.sort {
            ServiceSort::Avoidable => number(a.avoidable_per_month, b.avoidable_per_month),
            ServiceSort::Cost => number(a.cost_per_month, b.cost_per_month),
            ServiceSort::Across => number(a.cross_zone_bytes_per_day, b.cross_zone_bytes_per_day),
            ServiceSort::Measured => number(a.in_zone.measured, b.in_zone.measured),
            ServiceSort::Planned => number(a.in_zone.planned, b.in_zone.planned),
            ServiceSort::Overload => number(a.worst_overload, b.worst_overload),
            ServiceSort::Name => return if self.reversed { by_key(b, a) } else { by_key(a, b) },
            ServiceSort::Mechanism => text(&a.mechanism, &b.mechanism),
        }
        .then_with(|| by_key(a, b))
    }
}

pub fn services_page(report: &StatusReport, query: &ServicesQuery) -> Page {
    Page {
        title: "Services".to_owned(),
        nav: NavEntry::Services,
        fragments: vec![
            PageFragment::new("search", form(query)),
            PageFragment::new("services", services_table(report, query)),
        ],
    }
}

fn form(query: &ServicesQuery) -> String {
    let option = |(sort, key, text): &(ServiceSort, &str, &str)| {
        let selected = if *sort == query.sort { " selected" } else { "" };
        format!("<option value=\"{key}\"{selected}>{text}</option>")
    };
    format!(
        "<form action=\"/services\" role=\"search\" data-soft>\
         <label>Search <input type=\"search\" name=\"q\" id=\"q\" value=\"{}\" placeholder=\"namespace, name or mechanism\"></label> \
         <label>Sort by <select name=\"sort\">{}</select></label> <button>Show</button></form>\n",
        escaped(&query.search),
        SORTS.iter().map(option).collect::<String>()
    )
}

fn services_table(report: &StatusReport, query: &ServicesQuery) -> String {
    let mut found: Vec<&ServiceStatus> = report.services.iter().filter(|s| query.matches(s)).collect();
    if found.is_empty() {
        let text = match report.services.is_empty() {
            true => "There are no Services.".to_owned(),
            false => format!("None of {} matches.", count(report.services.len(), "Service")),
        };
        return format!("<p>{text}</p>\n");
    }
    // The report has the default order.
    if query.sort != ServiceSort::default() || query.reversed {
        found.sort_by(|a, b| query.order(a, b));
    }
    let first = (query.page * ROWS).min((found.len() - 1) / ROWS * ROWS);
    let shown = first..(first + ROWS).min(found.len());
    let page = first / ROWS + 1;
    let all = found.len();
    let turned = |number: usize| ServicesQuery { page: number - 1, ..query.clone() }.link();
    format!(
        "{}{}",
        rows_table(&found[shown.clone()], Some(query), &report.summary.currency),
        pager(shown, all, turned, page)
    )
}

/// The table of `zoneward status -o html`.
pub(crate) fn plain_table(services: &[ServiceStatus], currency: &str) -> String {
    rows_table(&services.iter().collect::<Vec<_>>(), None, currency)
}

fn rows_table(services: &[&ServiceStatus], query: Option<&ServicesQuery>, currency: &str) -> String {
    let columns = [
        TableColumn::text("Service").sorted_by("name"),
        TableColumn::text("Mechanism").sorted_by("mechanism"),
        TableColumn::number("In zone").sorted_by("measured"),
        TableColumn::number("Planned").sorted_by("planned"),
        TableColumn::number("Best"),
        TableColumn::number("Overload").sorted_by("overload"),
        TableColumn::number("Across/day").sorted_by("across"),
        TableColumn::number("Cost/month").sorted_by("cost"),
        TableColumn::number("Avoidable").sorted_by("avoidable"),
        TableColumn::text("Why, and what to do"),
    ];
    let row = |service: &&ServiceStatus| {
        let shares = service.in_zone;
        let measured = match shares.measured {
            Some(share) => share_bar(&percent(share), share, shares.planned),
            None => "-".to_owned(),
        };
        let name = match query {
            Some(_) => anchor(&service.key(), &service_link(&service.namespace, &service.name)),
            None => escaped(&service.key()),
        };
        let honored = if service.honored { "" } else { " <strong class=\"warn\">not honored</strong>" };
        let money =
            |money: Option<f64>| maybe(money.map(|money| escaped(&format!("{} {currency}", amount(money)))));
        vec![
            format!("{name}{honored}"),
            if service.mechanism.is_empty() { "-".to_owned() } else { escaped(&service.mechanism) },
            measured,
            maybe(shares.planned.map(percent)),
            maybe(shares.best.map(percent)),
            maybe(service.worst_overload.map(|load| format!("+{}", percent(load)))),
            maybe(service.cross_zone_bytes_per_day.map(size)),
            money(service.cost_per_month),
            money(service.avoidable_per_month),
            advice(service, query.is_none()),
        ]
    };
    let rows: Vec<Vec<String>> = services.iter().map(row).collect();
    let Some(query) = query else { return table(&columns, None, &rows) };
    let to = |key: &str| {
        let sort =
            SORTS.iter().find(|(_, known, _)| *known == key).map_or_else(ServiceSort::default, |s| s.0);
        let reversed = sort == query.sort && !query.reversed;
        ServicesQuery { sort, reversed, page: 0, ..query.clone() }.link()
    };
    let descending = query.sort.is_descending() != query.reversed;
    table(&columns, Some(&TableOrder { key: query.sort.key(), descending, link: &to }), &rows)
}

/// The reason, and the mechanism that would be better.
fn advice(service: &ServiceStatus, with_command: bool) -> String {
    // A reason that names the mechanism has said what follows.
    let repeats = |reason: &&str| service.effect.as_ref().is_some_and(|e| reason.starts_with(&e.mechanism));
    let reason = service.reason.as_deref().filter(|reason| !repeats(reason));
    let reason = reason.map(|reason| escaped(&sentence(reason))).unwrap_or_default();
    let change = match (&service.effect, &service.fix) {
        (Some(effect), Some(fix)) => {
            let to = format!("{} \u{2192} {} in zone", escaped(&effect.mechanism), percent(effect.in_zone));
            match with_command {
                true => format!("<details><summary>{to}</summary>{}</details>", copyable(fix)),
                false => format!(" <strong>{to}</strong>"),
            }
        }
        _ => String::new(),
    };
    format!("{reason}{change}")
}

/// What a fix would do.
pub(crate) fn fix_effect(service: &ServiceStatus, currency: &str) -> Option<String> {
    let effect = service.effect.as_ref()?;
    let before = service.in_zone.measured.or(service.in_zone.planned);
    let load = effect.worst_overload - service.worst_overload.unwrap_or(0.0);
    let money = effect.cost_per_month.map(|money| format!(", {} {currency}/month", amount(money)));
    Some(format!(
        "{} to {} in zone{}, overload {}{}",
        maybe(before.map(percent)),
        percent(effect.in_zone),
        money.unwrap_or_default(),
        if load < 0.0 { "-" } else { "+" },
        percent(load.abs())
    ))
}

/// One Service with its reason, fix and effect.
pub(crate) fn fix_item(service: &ServiceStatus, currency: &str) -> String {
    let name = anchor(&service.key(), &service_link(&service.namespace, &service.name));
    let reason = service.reason.as_deref().map(|reason| format!("<p>{}</p>\n", escaped(&sentence(reason))));
    let effect = fix_effect(service, currency)
        .map(|text| format!("<p>Effect: <strong>{}</strong></p>\n", escaped(&text)));
    format!(
        "<article><h3>{name}</h3>\n{}{}{}</article>\n",
        reason.unwrap_or_default(),
        service.fix.as_deref().map(copyable).unwrap_or_default(),
        effect.unwrap_or_default()
    )
}
