from .classifiers import branches as branches
from .classifiers import inception_v3 as inception_v3
from .classifiers import mlp as mlp
from .recurrent import big_lstm as big_lstm
from .recurrent import gnmt as gnmt
