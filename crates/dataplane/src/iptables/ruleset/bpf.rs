//! `-m bpf --bytecode`: classic BPF over the packet from its IP header on.

use std::fmt;

use super::IptablesError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BpfInstruction {
    pub code: u16,
    pub if_true: u8,
    pub if_false: u8,
    pub k: u32,
}

/// The text of `--bytecode`: the number of instructions, then each as `code jt jf k`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BpfProgram(pub Vec<BpfInstruction>);

impl BpfProgram {
    pub(super) fn parse(text: &str) -> Result<Self, IptablesError> {
        let wrong = || IptablesError::new(format!("{text:?} is no BPF bytecode"));
        let mut parts = text.trim_end_matches(',').split(',');
        let count: usize = parts.next().and_then(|n| n.trim().parse().ok()).ok_or_else(wrong)?;
        let parse = |part: &str| {
            let mut fields = part.split_whitespace().map(str::parse::<u32>);
            let mut next = || fields.next()?.ok();
            Some(BpfInstruction {
                code: next()?.try_into().ok()?,
                if_true: next()?.try_into().ok()?,
                if_false: next()?.try_into().ok()?,
                k: next()?,
            })
        };
        let instructions: Option<Vec<_>> = parts.map(parse).collect();
        let instructions = instructions.filter(|all| all.len() == count && count > 0).ok_or_else(wrong)?;
        Ok(Self(instructions))
    }

    /// Whether the program accepts a packet. Jumps only go forward, so that it ends.
    pub(super) fn matches(&self, packet: &[u8]) -> Result<bool, IptablesError> {
        let mut machine = Machine { packet, a: 0, x: 0, memory: [0; 16] };
        let mut at = 0usize;
        while let Some(instruction) = self.0.get(at) {
            at += 1;
            match machine.step(instruction) {
                Step::Next => {}
                Step::Jump(by) => at = at.saturating_add(by as usize),
                Step::End(value) => return Ok(value != 0),
                Step::Unknown => {
                    return Err(IptablesError::new(format!("unknown BPF instruction {}", instruction.code)));
                }
            }
        }
        Err(IptablesError::new("BPF bytecode does not end with a return"))
    }
}

impl fmt::Display for BpfProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.len())?;
        self.0.iter().try_for_each(|BpfInstruction { code, if_true, if_false, k }| {
            write!(f, ",{code} {if_true} {if_false} {k}")
        })
    }
}

struct Machine<'p> {
    packet: &'p [u8],
    a: u32,
    x: u32,
    memory: [u32; 16],
}

enum Step {
    Next,
    Jump(u32),
    End(u32),
    Unknown,
}

// linux/bpf_common.h: class, size, mode, operation, source.
const CLASS: u16 = 0x07;
const SIZE: u16 = 0x18;
const MODE: u16 = 0xe0;
const OPERATION: u16 = 0xf0;
const FROM_X: u16 = 0x08;

impl Machine<'_> {
    fn step(&mut self, instruction: &BpfInstruction) -> Step {
        let BpfInstruction { code, if_true, if_false, k } = *instruction;
        let operand = if code & FROM_X != 0 { self.x } else { k };
        match code & CLASS {
            // LD, LDX: a load beyond the packet ends the program with 0.
            0x00 => self
                .load(code, k)
                .map_or(Step::End(0), |value| value.map_or(Step::Unknown, |v| self.put_a(v))),
            0x01 => match self.load_x(code, k) {
                None => Step::End(0),
                Some(None) => Step::Unknown,
                Some(Some(value)) => {
                    self.x = value;
                    Step::Next
                }
            },
            // ST, STX
            0x02 | 0x03 => {
                let value = if code & CLASS == 0x02 { self.a } else { self.x };
                match self.memory.get_mut(k as usize) {
                    Some(cell) => {
                        *cell = value;
                        Step::Next
                    }
                    None => Step::Unknown,
                }
            }
            0x04 => match self.compute(code & OPERATION, operand) {
                None => Step::Unknown,
                Some(None) => Step::End(0),
                Some(Some(value)) => self.put_a(value),
            },
            0x05 => {
                let taken = match code & OPERATION {
                    0x00 => return Step::Jump(k),
                    0x10 => self.a == operand,
                    0x20 => self.a > operand,
                    0x30 => self.a >= operand,
                    0x40 => self.a & operand != 0,
                    _ => return Step::Unknown,
                };
                Step::Jump(u32::from(if taken { if_true } else { if_false }))
            }
            // RET: a constant or A.
            0x06 => Step::End(if code & SIZE == 0x10 { self.a } else { k }),
            // MISC: TAX, TXA
            _ => {
                if code & 0xf8 == 0x80 {
                    self.a = self.x;
                } else {
                    self.x = self.a;
                }
                Step::Next
            }
        }
    }

    fn put_a(&mut self, value: u32) -> Step {
        self.a = value;
        Step::Next
    }

    /// `None` beyond the packet, `Some(None)` for an unknown mode.
    fn load(&self, code: u16, k: u32) -> Option<Option<u32>> {
        let at = match code & MODE {
            0x00 => return Some(Some(k)),
            0x20 => k,
            0x40 => self.x.checked_add(k)?,
            0x60 => return Some(self.memory.get(k as usize).copied()),
            0x80 => return Some(u32::try_from(self.packet.len()).ok()),
            _ => return Some(None),
        };
        let width = match code & SIZE {
            0x00 => 4,
            0x08 => 2,
            _ => 1,
        };
        let start = at as usize;
        let bytes = self.packet.get(start..start.checked_add(width)?)?;
        Some(Some(bytes.iter().fold(0, |value, byte| value << 8 | u32::from(*byte))))
    }

    fn load_x(&self, code: u16, k: u32) -> Option<Option<u32>> {
        // MSH: the length of an IPv4 header.
        if code & MODE == 0xa0 {
            return self.packet.get(k as usize).map(|byte| Some(u32::from(byte & 0x0f) * 4));
        }
        match code & MODE {
            0x00 | 0x60 | 0x80 => self.load(code, k),
            _ => Some(None),
        }
    }

    /// `None` for an unknown operation, `Some(None)` for a division by zero.
    fn compute(&self, operation: u16, operand: u32) -> Option<Option<u32>> {
        let a = self.a;
        Some(match operation {
            0x00 => Some(a.wrapping_add(operand)),
            0x10 => Some(a.wrapping_sub(operand)),
            0x20 => Some(a.wrapping_mul(operand)),
            0x30 => a.checked_div(operand),
            0x40 => Some(a | operand),
            0x50 => Some(a & operand),
            0x60 => Some(a.checked_shl(operand).unwrap_or(0)),
            0x70 => Some(a.checked_shr(operand).unwrap_or(0)),
            0x80 => Some(a.wrapping_neg()),
            0x90 => a.checked_rem(operand),
            0xa0 => Some(a ^ operand),
            _ => return None,
        })
    }
}
