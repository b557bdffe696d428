"""The units that answers have: what each measures, its size in SI units, and its spellings.

Sizes that no conversion gives, those of currencies and temperatures, are numbers that no two share.
"""

PREFIXES = (
    ("p pico", "1e-12"), ("n nano", "1e-9"), ("\u03bc \u00b5 u micro", "1e-6"), ("m milli", "1e-3"),
    ("c centi", "1e-2"), ("d deci", "1e-1"), ("h hecto", "1e2"), ("k kilo", "1e3"),
    ("M mega", "1e6"), ("G giga", "1e9"), ("T tera", "1e12"),
)  # fmt: skip
"""The sign and the name of each prefix, and its size."""

UNITS = """
length | 1** | m : metre meter
length | 1 | \u7c73
length | 0.01 | \u5398\u7c73
length | 0.1 | \u5206\u7c73
length | 0.001 | \u6beb\u7c73
length | 1000 | \u5343\u7c73 \u516c\u91cc
length | 0.0254 | in inch inches
length | 0.3048 | ft foot feet
length | 0.9144 | yd yard
length | 1609.344 | mi mile
length time-1 | 1609.344/3600 | mph
length time-1 | 1000/3600 | kmh kph
area | 4046.8564 | acre
area | 10000 | hectare ha
mass | 0.001* | g : gram gramme
mass | 0.001 | \u514b
mass | 1 | \u5343\u514b \u516c\u65a4
mass | 0.45359237 | lb lbs pound
mass | 0.028349523 | oz ounce
mass | 1000 | ton tonne
time | 1* | s : second
time | 1 | sec \u79d2
time | 60 | min minute \u5206\u949f
time | 3600 | h hr hour \u5c0f\u65f6
time | 86400 | day \u5929
time | 604800 | week
time | 2629800 | month
time | 31557600 | year yr \u5e74
time | 315576000 | decade
time | 3155760000 | century centuries
time-1 | 1* | Hz : hertz
noon | 1 | am
noon | 2 | pm
volume | 0.001** | L : liter litre
volume | 0.001 | l
volume | 1e-6 | ml
volume | 0.003785 | gal gallon
volume | 0.000946 | quart
volume | 0.000473 | pint
volume | 0.000237 | cup
money | 1 | $ dollar usd buck aud cad nzd hkd sgd
money | 0.01 | cent \u00a2 penny pennies
money | 0.05 | nickel
money | 0.1 | dime
money | 1.1111 | \u20ac euro eur
money | 1.2222 | \u00a3 gbp pound quid
money | 0.012222 | pence
money | 0.0077 | \u00a5 yen jpy yuan cny rmb \u5143 \u5186
money | 0.0123 | \u20b9 rupee Rs inr
money | 0.000123 | paise paisa
money | 1.3333 | chf franc Fr
money | 0.1222 | peso
money | 0.0133 | ruble rouble rub
money | 0.0555 | won krw
angle | 1* | rad : radian
angle | 0.0174532925 | degree deg
angle | 6.2831853 | revolution
temperature | 1* | K : kelvin
temperature | 1.0001 | C celsius
temperature | 0.5556 | F fahrenheit
data | 1* | bit
data | 8 | byte
data | 8000 | KB kB kilobyte
data | 8e6 | MB megabyte
data | 8e9 | GB gigabyte
data | 8e12 | TB terabyte
mass length time-2 | 1* | N : newton
mass length2 time-2 | 1* | J : joule
mass length2 time-2 | 4.184 | cal calorie
mass length2 time-2 | 4184 | kcal kilocalorie
mass length2 time-2 | 3.6e6 | kWh
mass length2 time-2 | 1.602176634e-19* | eV : electronvolt
mass length2 time-3 | 1* | W : watt
mass length2 time-3 | 745.7 | hp horsepower
mass length-1 time-2 | 1** | Pa : pascal
mass length-1 time-2 | 101325 | atm atmosphere
mass length-1 time-2 | 1e5* | bar
mass length-1 time-2 | 133.322 | mmHg torr
current | 1* | A : ampere amp
current time | 1* | C : coulomb
mass length2 time-3 current-1 | 1* | V : volt
mass length2 time-3 current-2 | 1* | \u03a9 Ohm : ohm
mass-1 length-2 time4 current2 | 1* | F : farad
mass length2 time-2 current-2 | 1* | H : henry
mass length2 time-2 current-1 | 1* | Wb : weber
mass time-2 current-1 | 1* | T : tesla
amount | 1* | mol : mole
"""
"""What it measures | its size, a star if it takes prefixes, two if also centi | signs : names."""
