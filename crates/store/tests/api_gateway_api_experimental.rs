//! The experimental channel of the Gateway API: a process has one channel, so this is a test of its own.

use crate::gateway_api_cases;
use store::kinds::{GatewayApiChannel, set_gateway_api_channel};

/// X kinds are not served.
#[tokio::test]
async fn the_admission_cases_of_the_experimental_channel_are_taken_or_refused() {
    set_gateway_api_channel(GatewayApiChannel::Experimental);
    assert_eq!(gateway_api_cases::check_cases("standard").await, 71);
}
