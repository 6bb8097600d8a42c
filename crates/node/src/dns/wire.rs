//! Messages: bytes of a client to a question, an answer to bytes.

use hickory_proto::op::{Edns, Message, Metadata, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, CNAME, NS, PTR, SOA, SRV, TXT};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use hickory_proto::serialize::binary::{BinEncodable, BinEncoder};
use plan::dns::{DnsAnswer, DnsName, DnsQueryType, DnsQuestion, DnsRcode, DnsRecord, DnsRecordData};

const HEADER: usize = 12;
/// Without EDNS (RFC 1035), and the most over UDP with it: what fits any path, but here is only loopback.
const MIN_UDP: u16 = 512;
const MAX_UDP: u16 = 4_096;
/// What this server announces (DNS flag day 2020).
const OWN_UDP: u16 = 1_232;
/// OPT and a signature; a query has no other records.
const MAX_ADDITIONAL: u16 = 2;

/// A question that can be answered.
#[derive(Clone, Debug)]
pub(super) struct DnsQuery {
    request: Message,
    pub(super) question: DnsQuestion,
    pub(super) number: RecordType,
}

/// What to do with bytes from a client.
#[derive(Debug)]
pub(super) enum ReceivedMessage {
    Query(Box<DnsQuery>),
    /// Not answerable; the response says why.
    Rejected(ResponseCode, Vec<u8>),
    /// No query at all: silence, so that two servers do not answer each other for ever.
    Ignored,
}

fn number(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |pair| u16::from_be_bytes([pair[0], pair[1]]))
}

/// Reads a message. The counts are checked first: parsing reserves memory for them.
pub(super) fn read(bytes: &[u8]) -> ReceivedMessage {
    let is_response = bytes.get(2).is_none_or(|flags| flags & 0x80 != 0);
    if bytes.len() < HEADER || is_response {
        return ReceivedMessage::Ignored;
    }
    let opcode = OpCode::from_u8((bytes[2] >> 3) & 0xf);
    if opcode != OpCode::Query {
        return reject(bytes, opcode, ResponseCode::NotImp);
    }
    let counts = [4, 6, 8, 10].map(|at| number(bytes, at));
    if !matches!(counts, [1, 0, 0, 0..=MAX_ADDITIONAL]) {
        return reject(bytes, opcode, ResponseCode::FormErr);
    }
    let Ok(request) = Message::from_vec(bytes) else {
        return reject(bytes, opcode, ResponseCode::FormErr);
    };
    let Some(query) = request.queries.first() else {
        return reject(bytes, opcode, ResponseCode::FormErr);
    };
    let question = DnsQuestion {
        name: DnsName::from_labels(query.name().iter()),
        kind: DnsQueryType::from_number(query.query_type().into()),
    };
    let (class, number) = (query.query_class(), query.query_type());
    let query = DnsQuery { request, question, number };
    if query.request.version() > 0 {
        return rejected(&query, ResponseCode::BADVERS);
    }
    if class != DNSClass::IN {
        return rejected(&query, ResponseCode::Refused);
    }
    ReceivedMessage::Query(Box::new(query))
}

fn reject(bytes: &[u8], opcode: OpCode, code: ResponseCode) -> ReceivedMessage {
    let response = Message::error_msg(number(bytes, 0), opcode, code);
    response.to_vec().map_or(ReceivedMessage::Ignored, |bytes| ReceivedMessage::Rejected(code, bytes))
}

fn rejected(query: &DnsQuery, code: ResponseCode) -> ReceivedMessage {
    let bytes = query.failure(code);
    if bytes.is_empty() { ReceivedMessage::Ignored } else { ReceivedMessage::Rejected(code, bytes) }
}

impl DnsQuery {
    /// The size of a response over UDP that the client can take.
    pub(super) fn udp_limit(&self) -> u16 {
        self.request.max_payload().clamp(MIN_UDP, MAX_UDP)
    }

    fn response(&self, code: ResponseCode) -> Message {
        let mut response = Message::response(self.request.metadata.id, OpCode::Query);
        response.metadata = Metadata::response_from_request(&self.request.metadata);
        response.metadata.recursion_available = true;
        response.metadata.response_code = code;
        response.queries.clone_from(&self.request.queries);
        response.edns = self.request.edns.as_ref().map(|_| {
            let mut edns = Edns::new();
            edns.set_max_payload(OWN_UDP);
            edns
        });
        response
    }

    /// A response without records.
    pub(super) fn failure(&self, code: ResponseCode) -> Vec<u8> {
        self.response(code).to_vec().unwrap_or_default()
    }

    /// The response, within `limit` bytes. `chased` are the records of an alias' name outside of the cluster. Addresses
    /// are rotated by `turn`.
    pub(super) fn encode(&self, answer: &DnsAnswer, chased: Vec<Record>, turn: usize, limit: u16) -> Vec<u8> {
        let code = match answer.rcode {
            DnsRcode::NoError => ResponseCode::NoError,
            DnsRcode::ServFail => ResponseCode::ServFail,
            DnsRcode::NxDomain => ResponseCode::NXDomain,
            DnsRcode::Refused => ResponseCode::Refused,
        };
        let mut response = self.response(code);
        response.metadata.authoritative = true;
        let mut answers = answer.answers.clone();
        rotate(&mut answers, turn);
        response.answers = answers.iter().filter_map(|record| self.record(record)).collect();
        response.answers.extend(chased);
        response.authorities = answer.authority.iter().filter_map(|record| self.record(record)).collect();
        response.additionals = answer.additional.iter().filter_map(|record| self.record(record)).collect();
        fit(response, limit)
    }

    /// A name as the client wrote it, where it is that of the question. `None` if it is too long.
    fn name(&self, name: &DnsName) -> Option<Name> {
        match self.request.queries.first() {
            Some(query) if *name == self.question.name => Some(query.name().clone()),
            _ => to_name(name),
        }
    }

    fn record(&self, record: &DnsRecord) -> Option<Record> {
        let data = match &record.data {
            DnsRecordData::A(address) => RData::A(A(*address)),
            DnsRecordData::Aaaa(address) => RData::AAAA(AAAA(*address)),
            DnsRecordData::Cname(name) => RData::CNAME(CNAME(to_name(name)?)),
            DnsRecordData::Ns(name) => RData::NS(NS(to_name(name)?)),
            DnsRecordData::Ptr(name) => RData::PTR(PTR(to_name(name)?)),
            DnsRecordData::Soa { mname, rname, serial, refresh, retry, expire, minimum } => {
                let seconds = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
                let (refresh, retry, expire) = (seconds(*refresh), seconds(*retry), seconds(*expire));
                RData::SOA(SOA::new(
                    to_name(mname)?,
                    to_name(rname)?,
                    *serial,
                    refresh,
                    retry,
                    expire,
                    *minimum,
                ))
            }
            DnsRecordData::Srv { priority, weight, port, target } => {
                RData::SRV(SRV::new(*priority, *weight, *port, to_name(target)?))
            }
            DnsRecordData::Txt(text) => RData::TXT(TXT::new(vec![text.clone()])),
        };
        Some(Record::from_rdata(self.name(&record.name)?, record.ttl, data))
    }
}

fn to_name(name: &DnsName) -> Option<Name> {
    Name::from_labels(name.labels().iter().map(|label| label.as_bytes())).ok()
}

/// Clients that take the first address spread over all of them.
fn rotate(records: &mut [DnsRecord], turn: usize) {
    let first = records.iter().position(|record| record.data.is_address()).unwrap_or(records.len());
    let addresses = &mut records[first..];
    if !addresses.is_empty() {
        addresses.rotate_left(turn % addresses.len());
    }
}

/// RFC 2181, 9: additional records may be left out; without all answers, TC lets the client ask over TCP.
fn fit(mut response: Message, limit: u16) -> Vec<u8> {
    if let Some(bytes) = encode_whole(&response, limit) {
        return bytes;
    }
    response.additionals.clear();
    encode_whole(&response, limit).unwrap_or_else(|| response.truncate().to_vec().unwrap_or_default())
}

/// `None` if it does not fit.
fn encode_whole(response: &Message, limit: u16) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(512);
    let mut encoder = BinEncoder::new(&mut bytes);
    encoder.set_max_size(limit);
    response.emit(&mut encoder).ok()?;
    (!is_truncated(&bytes)).then_some(bytes)
}

pub(super) fn is_truncated(bytes: &[u8]) -> bool {
    bytes.get(2).is_some_and(|flags| flags & 0x02 != 0)
}

/// The response code in the header.
pub(super) fn header_code(bytes: &[u8]) -> ResponseCode {
    u16::from(bytes.get(3).copied().unwrap_or_default() & 0xf).into()
}

/// A query for the records of an alias' name.
pub(super) fn alias_query(name: &DnsName, number: RecordType) -> Option<Vec<u8>> {
    let mut message = Message::new(0, hickory_proto::op::MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(hickory_proto::op::Query::query(to_name(name)?, number));
    let mut edns = Edns::new();
    edns.set_max_payload(OWN_UDP);
    message.set_edns(edns);
    message.to_vec().ok()
}

/// The answers of a response.
pub(super) fn answers(bytes: &[u8]) -> Option<Vec<Record>> {
    Some(Message::from_vec(bytes).ok()?.answers)
}

/// The bytes of the question in a message with one question; `None` if it is malformed or has a compressed name.
pub(super) fn question_bytes(bytes: &[u8]) -> Option<&[u8]> {
    let mut at = HEADER;
    loop {
        let length = usize::from(*bytes.get(at)?);
        at += 1;
        match length {
            0 => break,
            1..=63 => at += length,
            _ => return None,
        }
    }
    bytes.get(HEADER..at + 4)
}
