//! The nodes: how current their kernels are, what failed, and how long changes take.

use crate::status::{NodeState, NodeStatus, StatusReport};
use output::html::escaped;

use crate::pages::figures::figure_list;
use crate::pages::overview::{convergence, nodes as node_figure};
use crate::pages::query::{QueryPairs, link};
use crate::pages::table::{TableColumn, TableOrder, pager, table};
use crate::pages::units::{age, count, listed, maybe};
use crate::pages::{NavEntry, Page, PageFragment};

const ROWS: usize = 100;
const MAX_NAMES: usize = 4;

/// What the table is sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeSort {
    /// The order of the report: those that need attention first.
    #[default]
    State,
    Name,
    Zone,
}

/// Parameters of the page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodesQuery {
    pub search: String,
    pub sort: NodeSort,
    /// From 0.
    pub page: usize,
}

impl NodesQuery {
    pub(crate) fn parse(pairs: &QueryPairs) -> Self {
        let page = pairs.value("page").and_then(|text| text.parse::<usize>().ok()).unwrap_or(1);
        Self {
            search: pairs.value("q").unwrap_or_default().to_lowercase(),
            sort: match pairs.value("sort") {
                Some("name") => NodeSort::Name,
                Some("zone") => NodeSort::Zone,
                _ => NodeSort::State,
            },
            page: page.saturating_sub(1).min(1_000_000),
        }
    }

    pub(crate) fn link(&self) -> String {
        let sort = match self.sort {
            NodeSort::State => "",
            NodeSort::Name => "name",
            NodeSort::Zone => "zone",
        };
        let page = if self.page == 0 { String::new() } else { (self.page + 1).to_string() };
        link("/nodes", &[("q", &self.search), ("sort", sort), ("page", &page)])
    }
}

pub fn nodes_page(report: &StatusReport, query: &NodesQuery) -> Page {
    let figures = figure_list(&[node_figure(report), convergence(&report.summary)]);
    Page {
        title: "Nodes".to_owned(),
        nav: NavEntry::Nodes,
        fragments: vec![
            PageFragment::new("figures", figures),
            PageFragment::new("search", form(query)),
            PageFragment::new("nodes", nodes_table(&report.nodes, query)),
        ],
    }
}

fn form(query: &NodesQuery) -> String {
    format!(
        "<form action=\"/nodes\" role=\"search\" data-soft><label>Search <input type=\"search\" name=\"q\" id=\"q\" \
         value=\"{}\" placeholder=\"name, zone or state\"></label> <button>Show</button></form>\n",
        escaped(&query.search)
    )
}

fn nodes_table(nodes: &[NodeStatus], query: &NodesQuery) -> String {
    let wanted = query.search.as_str();
    let matches = |node: &&NodeStatus| {
        wanted.is_empty()
            || node.name.contains(wanted)
            || node.zone.as_deref().is_some_and(|zone| zone.contains(wanted))
            || node.state.as_str().contains(wanted)
    };
    let mut found: Vec<&NodeStatus> = nodes.iter().filter(matches).collect();
    if found.is_empty() {
        let text = match nodes.is_empty() {
            true => "No node runs a Zoneward node proxy.".to_owned(),
            false => format!("None of {} matches.", count(nodes.len(), "node")),
        };
        return format!("<p>{text}</p>\n");
    }
    match query.sort {
        NodeSort::State => {}
        NodeSort::Name => found.sort_by(|a, b| a.name.cmp(&b.name)),
        NodeSort::Zone => found.sort_by(|a, b| (&a.zone, &a.name).cmp(&(&b.zone, &b.name))),
    }
    let first = (query.page * ROWS).min((found.len() - 1) / ROWS * ROWS);
    let shown = first..(first + ROWS).min(found.len());
    let columns = [
        TableColumn::text("Node").sorted_by("name"),
        TableColumn::text("Zone").sorted_by("zone"),
        TableColumn::text("State").sorted_by("state"),
        TableColumn::number("Services behind"),
        TableColumn::text("Failed Services"),
        TableColumn::number("Repairs"),
        TableColumn::number("Lost events"),
        TableColumn::number("Last report"),
    ];
    let rows: Vec<Vec<String>> = found[shown.clone()].iter().map(|node| row(node)).collect();
    let to = |key: &str| {
        let sort = match key {
            "name" => NodeSort::Name,
            "zone" => NodeSort::Zone,
            _ => NodeSort::State,
        };
        NodesQuery { sort, page: 0, ..query.clone() }.link()
    };
    let key = match query.sort {
        NodeSort::State => "state",
        NodeSort::Name => "name",
        NodeSort::Zone => "zone",
    };
    let order = TableOrder { key, descending: false, link: &to };
    let turned = |number: usize| NodesQuery { page: number - 1, ..query.clone() }.link();
    let all = found.len();
    format!(
        "{}{}<p class=\"faint\">Repairs: how often tables were restored that others had modified. Lost events: overflows of \
         conntrack events, whose bytes are not counted.</p>\n",
        table(&columns, Some(&order), &rows),
        pager(shown, all, turned, first / ROWS + 1)
    )
}

fn row(node: &NodeStatus) -> Vec<String> {
    let state = match node.state {
        NodeState::Silent | NodeState::Behind => {
            format!("<strong class=\"warn\">{}</strong>", node.state.as_str())
        }
        NodeState::Current | NodeState::NotReady => node.state.as_str().to_owned(),
    };
    let number = |number: Option<u64>| maybe(number.map(|number| number.to_string()));
    vec![
        escaped(&node.name),
        node.zone.as_deref().map_or_else(|| "-".to_owned(), escaped),
        state,
        if node.services_behind == 0 { "-".to_owned() } else { node.services_behind.to_string() },
        match node.failed_services.is_empty() {
            true => "-".to_owned(),
            false => escaped(&listed(&node.failed_services, MAX_NAMES)),
        },
        number(node.repairs),
        number(node.lost_events),
        age(node.report_age_seconds),
    ]
}
