"""modbus-connection as its users run it: BACKEND (tmodbus | pymodbus) WIRE WHERE UNIT, then requests.

The wire is ``tcp`` with a port, ``rtu`` with a serial port, or ``tls`` with PORT,CA,CERTIFICATE,KEY.

A request is ``read:ADDRESS:COUNT``, ``input:ADDRESS:COUNT``, ``write:ADDRESS:VALUE``, ``block:ADDRESS:V,V,...``,
``coil:ADDRESS`` or ``scan:BASE``. Prints a JSON list: what each gave, or the name of the error it raised.
"""

import asyncio
import importlib
import json
import sys
from typing import Any

from modbus_connection import (  # type: ignore[import-not-found]
    ModbusError,
    ModbusSerialParams,
    ModbusTcpParams,
    ModbusTlsParams,
)
from modbus_connection.model.sunspec import scan  # type: ignore[import-not-found]


async def ask(unit: Any, request: str) -> object:
    kind, first, *rest = request.split(":")
    address = int(first)
    if kind == "read":
        return await unit.read_holding_registers(address, int(rest[0]))
    if kind == "input":
        return await unit.read_input_registers(address, int(rest[0]))
    if kind == "write":
        return await unit.write_register(address, int(rest[0]))
    if kind == "block":
        return await unit.write_registers(address, [int(value) for value in rest[0].split(",")])
    if kind == "coil":
        return await unit.read_coils(address, 1)
    assert kind == "scan", request
    return [[model.model_id, model.address, model.length] for model in (await scan(unit, address)).chain]


def params(wire: str, where: str) -> Any:
    if wire == "tcp":
        return ModbusTcpParams(host="127.0.0.1", port=int(where))
    if wire == "rtu":
        return ModbusSerialParams(device=where)
    port, ca, certificate, key = where.split(",")
    return ModbusTlsParams(
        host="127.0.0.1", port=int(port), verify=ca, client_cert=certificate, client_key=key
    )


async def main(backend: str, wire: str, where: str, unit: str, *requests: str) -> None:
    module = importlib.import_module(f"modbus_connection.{backend}")
    connection = module.ModbusConnection(params(wire, where), timeout=5.0)
    seen: list[object] = []
    try:
        handle = connection.for_unit(int(unit))
        for request in requests:
            try:
                seen.append(await ask(handle, request))
            except ModbusError as error:
                seen.append(type(error).__name__)
    finally:
        await connection.close()
    print(json.dumps(seen))


asyncio.run(main(*sys.argv[1:]))
