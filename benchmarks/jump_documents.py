"""What `jump.py` asks for: documents as programs and tools want them, with a text for each."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def _object(**properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _text(most: int) -> Schema:
    return {"type": "string", "maxLength": most}


def _whole(least: int, most: int) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most}


def _one_of(*values: str) -> Schema:
    return {"enum": list(values)}


_ADDRESS = _object(
    street=_text(24),
    city=_text(16),
    postal_code={"type": "string", "pattern": "^[0-9]{5}$"},
)
PERSON = _object(
    first_name=_text(16),
    last_name=_text(16),
    age=_whole(0, 120),
    occupation=_text(20),
    email_address=_text(28),
    is_employed={"type": "boolean"},
    home_address=_ADDRESS,
)
TOOL_CALL = _object(
    tool=_one_of("search_flights", "book_hotel", "get_weather_forecast"),
    arguments=_object(
        departure_city=_text(16),
        destination_city=_text(16),
        departure_date={"type": "string", "pattern": "^2026-(0[1-9]|1[0-2])-[0-2][0-9]$"},
        number_of_passengers=_whole(1, 9),
        travel_class=_one_of("economy", "premium_economy", "business", "first"),
    ),
    requires_confirmation={"type": "boolean"},
)
ORDER = _object(
    order_number=_whole(1, 99999),
    status=_one_of("pending", "shipped", "delivered", "cancelled"),
    customer=_object(name=_text(20), shipping_address=_ADDRESS),
    items={
        "type": "array",
        "minItems": 2,
        "maxItems": 2,
        "items": _object(
            product_name=_text(20),
            quantity=_whole(1, 20),
            unit_price=_whole(1, 999),
        ),
    },
    total_amount=_whole(1, 9999),
)

_TEXTS: dict[str, tuple[Schema, tuple[str, ...]]] = {
    "person": (
        PERSON,
        (
            "Ada Novak, 34, repairs violins on 12 Mill Lane in Leeds; write to ada@novak.example.",
            "Our new baker is Tom Reyes, 51, who lives at 8 Harbour Street, Dover.",
            "Mira Olsen is a retired teacher of 67 in Bergen, 3 Church Road.",
            "Sam Okoro, a student aged 22, has a room at 40 Park Avenue in Austin.",
        ),
    ),
    "tool call": (
        TOOL_CALL,
        (
            "Find me a flight from Oslo to Rome on 3 May 2026 for two, economy please.",
            "We are four and want to fly business from Paris to Tokyo on 12 August 2026.",
            "What will the weather be in Lima when I arrive from Quito on 21 June 2026?",
            "Book a hotel in Vienna for me; I come from Graz on 9 October 2026.",
        ),
    ),
    "order": (
        ORDER,
        (
            "Order 4711: Eva Lang, 5 Oak Road, Salem, wants 2 lamps at 40 and 3 chairs at 85.",
            "Shipped: order 302 of John Pike, 77 Hill Street, Reno: 1 tent at 210, 6 pegs at 2.",
            "Order 9 was cancelled. It was 4 mugs at 7 and 1 teapot at 30 for Li Wei in Boston.",
            "Delivered to Ana Cruz, 19 Lake Drive, Miami: order 88, 10 pens at 1, 2 books at 15.",
        ),
    ),
}
TEXTS = 4  # of each schema
# what kind it is, its schema, the prompt
DOCUMENTS: list[tuple[str, Schema, str]] = [
    (kind, schema, f"Text: {text}\nThe same as JSON:\n")
    for kind, (schema, texts) in _TEXTS.items()
    for text in texts
]
