//! `GET /backup`: who may have it, and that nothing is left behind.

use crate::world;
use bytes::Bytes;
use fixtures::eventually_async;
use http::Request;
use http_body_util::BodyExt;
use store::api::Caller;
use store::api::backup::REVISION_HEADER;
use store::engine::{EncryptionKeys, Engine};
use world::{World, folder, read};

fn request() -> Request<Bytes> {
    Request::get("/backup").body(Bytes::new()).unwrap()
}

#[tokio::test]
async fn the_admin_gets_a_sound_copy_and_says_its_length_first() {
    let world = World::new().await;
    let response = world.api.answer(request(), &Caller::own()).await;
    assert_eq!(response.status(), 200);
    let header = |name: &str| response.headers()[name].to_str().unwrap().parse::<u64>().unwrap();
    let (length, revision) = (header("content-length"), header(REVISION_HEADER));
    assert_eq!(revision, world.api.engine().revision().0);
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(bytes.len() as u64, length);
    let place = folder();
    let file = place.join("backup");
    std::fs::write(&file, &bytes).unwrap();
    let report = Engine::check_backup(&file, &EncryptionKeys::default()).unwrap();
    assert!(report.is_sound() && report.objects > 3, "{report}");
    std::fs::remove_dir_all(place).unwrap();
}

#[tokio::test]
async fn the_reader_gets_none_since_secrets_are_inside() {
    let world = World::new().await;
    let reader = Caller::new("zoneward-reader", &["zoneward:readers", "system:authenticated"]);
    let (code, status) = read(world.api.answer(request(), &reader).await).await;
    assert_eq!((code, status["reason"].as_str()), (403, Some("Forbidden")), "{status}");
}

#[tokio::test]
async fn one_copy_at_a_time() {
    let world = World::new().await;
    let first = world.api.answer(request(), &Caller::own()).await;
    assert_eq!(first.status(), 200);
    drop(first);
    // The permit is released when the last reader ends.
    let is_free = async || world.api.answer(request(), &Caller::own()).await.status() == 200;
    eventually_async("the turn comes back", is_free).await;
}
