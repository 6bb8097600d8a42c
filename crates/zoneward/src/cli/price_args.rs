//! Prices of traffic between zones.

use clap::Args;

/// The price of traffic between zones.
#[derive(Debug, Args)]
pub struct PriceArgs {
    /// USD per GB that crosses zones, or of one pair of zones; repeatable [default: by spec.providerID of the Nodes:
    /// aws 0.02, gce 0.01 per GiB, azure 0]
    #[arg(long, value_name = "USD|ZONE:ZONE=USD", value_parser = price)]
    pub price: Vec<String>,
}

fn price(text: &str) -> Result<String, String> {
    insight::ledger::PriceTable::default().set(text).map(|()| text.to_owned())
}
