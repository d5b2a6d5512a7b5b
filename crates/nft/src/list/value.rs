//! Literals as nft writes them.
use crate::prelude::*;
use crate::{
    clock,
    env::Env,
    symbols::{self, Table},
    words::write_time_ms,
};
use core::net::{Ipv4Addr, Ipv6Addr};
use fordway_filter::model::{DataType, Value};

/// How a literal is written: where it stands decides about names and quotes.
pub(super) struct Writer<'a> {
    pub env: &'a Env,
}

impl Writer<'_> {
    /// A literal; `extra` are names that the field beside it has, `raw` is payload without a type.
    pub(super) fn value(&self, value: &Value, extra: Table, raw: bool) -> String {
        let number = value.as_number();
        let data_type = value.data_type;
        if raw {
            return format!("{number:#x}");
        }
        if let Some((name, _)) = extra.iter().find(|(_, known)| u128::from(*known) == number) {
            return (*name).to_string();
        }
        let named = || symbols::by_number(data_type, number).map(str::to_string);
        match data_type {
            DataType::Ipv4Addr => Ipv4Addr::from(u32::try_from(number).unwrap_or(0)).to_string(),
            DataType::Ipv6Addr => Ipv6Addr::from(number).to_string(),
            DataType::EtherAddr | DataType::LlAddr => lladdr(number),
            DataType::IfName | DataType::String => format!("\"{}\"", text(value)),
            DataType::IfIndex => u32::try_from(number)
                .ok()
                .and_then(|index| self.env.interface_name(index))
                .map_or(number.to_string(), |name| format!("\"{name}\"")),
            DataType::Mark => format!("{number:#010x}"),
            DataType::ClassId => classid(number),
            DataType::TimeSpan => write_time_ms(u64::try_from(number).unwrap_or(u64::MAX)),
            DataType::Time => format!(
                "\"{}\"",
                clock::write_time_ns(u64::try_from(number).unwrap_or(u64::MAX))
            ),
            DataType::Hour => format!(
                "\"{}\"",
                clock::write_hour(u64::try_from(number).unwrap_or(0))
            ),
            DataType::Day => named().map_or(number.to_string(), |name| format!("\"{name}\"")),
            // Names of these depend on files of the host.
            DataType::DevGroup | DataType::Realm => number.to_string(),
            DataType::Dscp => named().unwrap_or_else(|| format!("{number:#04x}")),
            DataType::EtherType => named().unwrap_or_else(|| format!("{number:#06x}")),
            DataType::CtLabel if number.count_ones() == 1 => number.trailing_zeros().to_string(),
            other if other.is_bitmask() => flags(other, number)
                .map_or_else(|| format!("{number:#x}"), |names| names.join(" | ")),
            _ => named().unwrap_or_else(|| number.to_string()),
        }
    }
}

impl Writer<'_> {
    /// An end of a range: numbers, because names may have dashes in them.
    pub(super) fn end(&self, value: &Value, extra: Table, raw: bool) -> String {
        let number = value.as_number();
        let data_type = value.data_type;
        match data_type {
            DataType::Day => self.value(value, extra, raw),
            DataType::TimeSpan if number.is_multiple_of(1000) => format!("{}s", number / 1000),
            DataType::Dscp | DataType::EtherType | DataType::ClassId => format!("{number:#x}"),
            _ if raw => self.value(value, extra, raw),
            _ if !symbols::table(data_type).is_empty() || !extra.is_empty() => number.to_string(),
            _ => self.value(value, extra, raw),
        }
    }
}

/// The text of a value; a beginning gets its asterisk back.
pub(super) fn text(value: &Value) -> String {
    let text = value.as_text();
    if value.is_text_prefix() {
        format!("{text}*")
    } else if let Some(start) = text.strip_suffix('*') {
        format!("{start}\\*")
    } else {
        text.to_string()
    }
}

/// The names of all bits, lowest first; `None` if a bit has none or there are no bits.
pub(super) fn flags(data_type: DataType, number: u128) -> Option<Vec<String>> {
    let mut names = Vec::new();
    let mut rest = number;
    while rest != 0 {
        let bit = rest & rest.wrapping_neg();
        rest &= !bit;
        names.push(if data_type == DataType::CtLabel {
            bit.trailing_zeros().to_string()
        } else {
            symbols::by_number(data_type, bit)?.to_string()
        });
    }
    (!names.is_empty()).then_some(names)
}

pub(super) fn lladdr(number: u128) -> String {
    let bytes = number.to_be_bytes();
    let parts: Vec<String> = bytes[10..]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    parts.join(":")
}

pub(super) fn classid(number: u128) -> String {
    match number {
        0xffff_ffff => "root".to_string(),
        0 => "none".to_string(),
        _ => format!("{:x}:{:x}", number >> 16, number & 0xffff),
    }
}
