"""A unit that shows a vendor's registers instead of SunSpec's. What they are is data: a register profile."""
